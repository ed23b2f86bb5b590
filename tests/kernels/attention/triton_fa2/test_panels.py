"""Kernels of few keys, few queries, and sizes that are no power of two; in the interpreter on a CPU machine."""

import pytest
import torch

from kernels.plans import PlanCache

triton_fa2 = pytest.importorskip("kernels.attention.triton_fa2")
plan, tuning = (pytest.importorskip(f"kernels.attention.triton_fa2.{x}") for x in ("plan", "tuning"))
panels = pytest.importorskip("kernels.attention.triton_fa2.panels")


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, (16, 0)), (16, (16, 0)), (20, (32, 0)), (40, (32, 16)), (64, (64, 0)), (77, (64, 16)), (100, (128, 0))],
)
def test_two_panels_are_fewer_than_one(size, expected):
    assert panels.panels(size) == expected


@pytest.mark.parametrize(
    ("seqlen_k", "expected"), [(77, (64, 16)), (128, (128, 0)), (145, (128, 32)), (200, (128, 128)), (256, (128, 128))]
)
def test_more_than_128_keys_are_always_two_panels(seqlen_k, expected):
    assert panels.key_panels(seqlen_k) == expected


@pytest.mark.parametrize(
    ("shape", "head_dim", "causal", "table"),
    [  # batch, num_heads, seqlen_q, seqlen_k
        ((32, 12, 32, 257), 64, False, "panels"),
        ((32, 12, 33, 257), 64, False, "forward"),
        ((32, 12, 32, 257), 64, True, "forward"),
        ((16, 16, 1, 729), 72, False, "panels"),
        ((4, 16, 8, 729), 72, False, "panels"),
        ((16, 20, 1, 1500), 64, False, "panels"),
        ((16, 16, 1, 729), 128, False, "forward"),
        ((2, 8, 256, 256), 160, False, "panels"),
        ((2, 8, 256, 256), 256, False, "forward"),
        ((4, 1, 16384, 256), 32, False, "few_keys"),
        ((4, 1, 16384, 256), 64, False, "forward"),
    ],
)
def test_a_forward_on_sm_90_is_of_the_table_that_was_fastest(shape, head_dim, causal, table):
    batch, num_heads, seqlen_q, seqlen_k = shape
    sizes = (batch, num_heads, num_heads, seqlen_q, seqlen_k, head_dim)
    found = plan.TritonProblem(
        torch.device("cuda"), torch.bfloat16, *sizes, causal, 0, 0.1, "ieee", "sm_90", 132, 50 << 20
    )
    assert found.forward_table == table


@pytest.mark.parametrize(
    ("window_size", "head_dim", "causal", "table"),
    [
        (128, 64, True, "window"),
        (193, 64, True, "window"),
        (194, 64, True, "forward"),  # 257 keys for 64 rows
        (97, 64, False, "window"),
        (98, 64, False, "forward"),
        (128, 128, True, "forward"),
    ],
)
def test_a_short_window_is_held_whole(window_size, head_dim, causal, table):
    sizes = (1, 64, 8, 8192, 8192, head_dim)
    chip = ("ieee", "sm_90", 132, 50 << 20)
    found = plan.TritonProblem(torch.device("cuda"), torch.bfloat16, *sizes, causal, window_size, 0.1, *chip)
    assert found.forward_table == table


# the kernel; batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim; causal, window_size
CASES = {
    "few keys": ("few_keys", (1, 2, 1, 40, 40, 40), False, 0),
    "few keys, causal, rows that see no key": ("few_keys", (1, 1, 1, 50, 40, 16), True, 0),
    "few keys in two panels of 128": ("few_keys", (1, 1, 1, 20, 200, 16), False, 0),
    "few keys, window": ("few_keys", (1, 1, 1, 40, 40, 16), True, 9),
    "window, heads that share keys": ("window", (1, 8, 2, 70, 75, 16), True, 40),
    "window on both sides, two panels of columns": ("window", (1, 2, 1, 40, 30, 40), False, 9),
    "a tail of keys, two panels": ("panels", (1, 2, 1, 20, 40, 40), False, 0),
    "two panels, no tail of keys": ("panels", (1, 1, 1, 20, 64, 40), False, 0),
    "few queries": ("few_queries", (2, 2, 2, 5, 40, 40), False, 0),
    "few queries, causal": ("few_queries", (1, 4, 4, 14, 14, 16), True, 0),
    "few queries, window, rows that see no key": ("few_queries", (1, 4, 4, 16, 10, 16), False, 3),
}


@pytest.mark.parametrize(("kernel", "shape", "causal", "window_size"), CASES.values(), ids=CASES.keys())
def test_panels_are_as_near_the_oracle_as_naive(problem, kernel, shape, causal, window_size, monkeypatch):
    others = {"forward": tuning.Tile(32, 32, 4, 1), "dq": tuning.Tile(16, 32, 4, 1), "dkdv": tuning.Tile(16, 32, 4, 1)}
    tiles = {**others, kernel: tuning.Tile(16, 32, 4, 1, 1)}
    monkeypatch.setattr(tuning, "tiles", lambda name, *key: [tiles[name]] if name in tiles else [])
    monkeypatch.setattr(plan, "_PLANS", PlanCache())
    problem(shape, torch.float16, causal=causal, window_size=window_size).check(triton_fa2.attention)
    (used,) = plan._PLANS.values()
    assert used.problem.has_few_queries == (kernel == "few_queries")
    assert used.problem.forward_table == ("forward" if kernel == "few_queries" else kernel)


@pytest.mark.parametrize(("heads", "seqlen_q", "tiles_each"), [(2, 600, 3), (8, 120, 2), (4, 120, 1)])
def test_programs_of_few_keys_share_out_whole_tiles(heads, seqlen_q, tiles_each, monkeypatch):
    tile = tuning.Tile(64, 128, 4, 1, 2)
    q, k = (torch.empty(1, heads, n, 64, dtype=torch.float16) for n in (seqlen_q, 77))
    found = plan.TritonProblem.of(q, k, False, 0, None, "ieee")
    assert found.multiprocessors == 4
    assert found.rows_each(tile) == 64 * tiles_each


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "seqlen", "heads_each"),
    [(4, 1, 60, 1), (6, 1, 100, 3), (16, 2, 60, 4), (16, 2, 600, 8)],
)  # fmt: skip
def test_programs_of_a_window_take_as_many_heads_as_leave_each_multiprocessor_one(
    num_heads, num_kv_heads, seqlen, heads_each
):
    q, k = (torch.empty(1, heads, seqlen, 64, dtype=torch.float16) for heads in (num_heads, num_kv_heads))
    found = plan.TritonProblem.of(q, k, True, 128, None, "ieee")
    assert found.multiprocessors == 4
    assert found.heads_each(tuning.Tile(64, 128, 4, 2, 3)) == heads_each


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "causal"),
    [((2, 10, 10, 1024, 77, 64), False), ((64, 8, 8, 77, 77, 64), True), ((64, 5, 5, 14, 14, 64), False),
     ((4, 1, 1, 4096, 200, 32), False), ((2, 8, 8, 256, 256, 160), False),
     ((2, 8, 8, 512, 77, 40), False), ((32, 12, 12, 32, 257, 64), False), ((16, 16, 16, 1, 729, 72), False)],
)  # fmt: skip
def test_few_keys_and_few_queries_are_right_on_the_gpu(problem, shape, causal, dtype):
    problem(shape, dtype, causal=causal).check(triton_fa2.attention)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("shape", "causal", "window_size"),
    [
        ((1, 64, 8, 1000, 1300, 64), True, 128),
        ((2, 24, 12, 1100, 1000, 40), False, 40),
        ((4, 16, 4, 700, 700, 64), True, 190),
    ],
)
def test_short_windows_are_right_on_the_gpu(problem, shape, causal, window_size):
    problem(shape, torch.bfloat16, causal=causal, window_size=window_size).check(triton_fa2.attention)
