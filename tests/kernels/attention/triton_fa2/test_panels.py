"""Kernels of few keys, few queries, and sizes that are no power of two; in the interpreter on a CPU machine."""

import pytest
import torch

from tests.cases import cases, named

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


@pytest.mark.parametrize("shape, head_dim, causal, table", cases(__file__, "tables on sm_90"))
def test_a_forward_on_sm_90_is_of_the_table_that_was_fastest(shape, head_dim, causal, table):
    batch, num_heads, seqlen_q, seqlen_k = shape
    sizes = (batch, num_heads, num_heads, seqlen_q, seqlen_k, head_dim)
    found = plan.TritonProblem(
        torch.device("cuda"), torch.bfloat16, *sizes, causal, 0, 0.1, "ieee", "sm_90", 132, 50 << 20
    )
    assert found.forward_table == table


@pytest.mark.parametrize("window_size, head_dim, causal, table", named(__file__, "short windows"))
def test_a_short_window_is_held_whole(window_size, head_dim, causal, table):
    sizes = (1, 64, 8, 8192, 8192, head_dim)
    chip = ("ieee", "sm_90", 132, 50 << 20)
    found = plan.TritonProblem(torch.device("cuda"), torch.bfloat16, *sizes, causal, window_size, 0.1, *chip)
    assert found.forward_table == table


# the kernel; batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim; causal, window_size


@pytest.mark.parametrize(("kernel", "shape", "causal", "window_size"), named(__file__, "CASES"))
def test_panels_are_as_near_the_oracle_as_naive(problem, kernel, shape, causal, window_size, only):
    others = {"forward": tuning.Tile(32, 32, 4, 1), "dq": tuning.Tile(16, 32, 4, 1), "dkdv": tuning.Tile(16, 32, 4, 1)}
    plans = only(**others | {kernel: tuning.Tile(16, 32, 4, 1, 1)})
    problem(shape, torch.float16, causal=causal, window_size=window_size).check(triton_fa2.attention)
    (used,) = plans.values()
    assert used.problem.has_few_queries == (kernel == "few_queries")
    assert used.problem.has_whole_heads == (kernel == "whole_heads")
    assert used.problem.forward_table == (kernel if kernel in ("few_keys", "window") else "forward")


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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape, causal", cases(__file__, "few keys and queries"))
def test_few_keys_and_few_queries_are_right_on_the_gpu(problem, shape, causal, dtype):
    problem(shape, dtype, causal=causal).check(triton_fa2.attention)


@pytest.mark.gpu
@pytest.mark.parametrize("shape, causal, window_size", cases(__file__, "windows on the GPU"))
def test_short_windows_are_right_on_the_gpu(problem, shape, causal, window_size):
    problem(shape, torch.bfloat16, causal=causal, window_size=window_size).check(triton_fa2.attention)
