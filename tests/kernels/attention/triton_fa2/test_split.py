"""Walks cut into splits: how they are cut and in what order, that results are as near and the same bits every time."""

import pytest
import torch

from tests.cases import cases

triton_fa2 = pytest.importorskip("kernels.attention.triton_fa2")
shapes, split, tuning = (
    pytest.importorskip(f"kernels.attention.triton_fa2.{x}") for x in ("problem", "split", "tuning")
)
triton, tl = (pytest.importorskip(name) for name in ("triton", "triton.language"))
longest_first = split.longest_first
TILE = tuning.Tile(32, 32, 4, 2, programs=64)

# long enough for windows that touch some splits of a walk only, and a few others
CUT_CASES = cases(__file__, "CUT_CASES")


@pytest.mark.parametrize(
    ("name", "uses_bf16x6"),
    [(name, False) for name in CUT_CASES] + [(name, True) for name in ("full", "rows that see no key")],
)
def test_walks_cut_up_are_as_near_and_the_same_bits_every_time(problem, name, uses_bf16x6, only, monkeypatch):
    plans = only("forward", "dq_dkdv", "dq", "dkdv", tile=TILE)
    monkeypatch.setattr(tuning, "uses_bf16x6", lambda *key: uses_bf16x6)
    monkeypatch.setattr(split, "STEP", 32)
    monkeypatch.setattr(split, "LONG", 0)
    shape, causal, window_size = CUT_CASES[name]
    made = problem(shape, torch.float32, causal=causal, window_size=window_size)
    made.check(triton_fa2.attention)
    (used,) = plans.values()
    assert used.problem.forward_split.count > 1
    if shape[3] == 63:  # once will do
        first, second = made.run(triton_fa2.attention), made.run(triton_fa2.attention)
        assert all(first[name].equal(second[name]) for name in first)


def test_a_cut_walk_of_16_bits_is_right(problem, only, monkeypatch):
    plans = only("forward", "dq_dkdv", tile=TILE)
    monkeypatch.setattr(tuning, "limit", lambda *asked: 0)
    monkeypatch.setattr(split, "STEP", 32)
    problem((1, 1, 1, 63, 63, 32), torch.float16, causal=True).check(triton_fa2.attention)
    (used,) = plans.values()
    assert used.problem.dq_dkdv_split.count > 1


@pytest.mark.parametrize(
    ("heads", "seqlen", "is_cut"),
    [(1, 16384, True), (16, 1024, False), (8, 1024, True), (8, 513, True), (8, 512, False)],
)
def test_short_walks_and_those_of_many_heads_are_left_whole(heads, seqlen, is_cut, on_h200):
    q = torch.empty(1, heads, seqlen, 64, dtype=torch.float16)
    assert (shapes.TritonProblem.of(q, q, True, 0, None, "ieee").forward_split is not None) == is_cut


@pytest.mark.parametrize(("keys", "is_one_launch"), [(256, True), (77, False)])
def test_many_queries_on_few_keys_have_two_launches(keys, is_one_launch, on_h200):
    q, k = (torch.empty(2, 8, rows, 80, dtype=torch.float16) for rows in (1024, keys))
    assert shapes.TritonProblem.of(q, k, False, 0, None, "ieee").has_dq_dkdv == is_one_launch


@pytest.mark.parametrize(("seqlen", "is_cut"), [(256, False), (257, True)])
def test_a_short_backward_is_one_launch(seqlen, is_cut, on_h200):
    q = torch.empty(1, 8, seqlen, 64, dtype=torch.float16)
    found = shapes.TritonProblem.of(q, q, True, 0, None, "ieee")
    assert (found.dq_dkdv_split is not None) == is_cut


def test_a_walk_is_cut_into_as_many_pieces_as_are_wanted_at_most():
    assert split.choose_split(2048, 2048, 1.0) is None
    assert split.choose_split(100, 100, 50.0) is None
    assert split.choose_split(8192, 1152, 0.5) is None, "a window's walk, which one program does"
    assert split.choose_split(2048, 2048, 3.0) == (3, 768)
    assert split.choose_split(8192, 8192, 1000.0) == (22, 384), "of 31 that are allowed"
    assert split.choose_split(8192, 300, 2.0) == (3, 256), "a window may begin anywhere, and so touch one split more"


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("seqlen", [1504, 2048, 3000, 5000, 6000, 8192, 12000, 16384])
def test_a_piece_of_a_causal_forward_holds_what_each_program_has_to_walk(seqlen, head_dim, on_h200):
    q = torch.empty(1, 1, seqlen, head_dim, dtype=torch.float16)
    shape = shapes.TritonProblem.of(q, q, True, 0, None, "ieee")
    tile, made = shape.tiles("forward")[0], shape.forward_split
    walked = sum(min(seqlen, end) for end in range(tile.block_m, seqlen + tile.block_m, tile.block_m))
    share = walked / (tile.programs * 132)
    assert share <= made.length <= 1.1 * share + split.STEP
    assert made.count == -(-seqlen // made.length)
    assert made.count * seqlen * head_dim * 4 <= 20e6, "bytes of the partial results"


@triton.jit
def _order_kernel(out_ptr, tiles, tiles_a_split, RANKS: tl.constexpr):
    ranks = tl.arange(0, RANKS)
    tl.store(out_ptr + ranks, longest_first(ranks, tiles, tiles_a_split), mask=ranks < tiles)


@pytest.mark.parametrize(("tiles", "tiles_a_split"), [(1, 4), (7, 7), (20, 4), (21, 4), (63, 11), (64, 1)])
def test_tiles_whose_last_piece_is_long_come_before_those_whose_last_is_short(tiles, tiles_a_split):
    out = torch.full((64,), -1, dtype=torch.int32, device="cuda" if torch.cuda.is_available() else "cpu")
    _order_kernel[(1,)](out, tiles, tiles_a_split, RANKS=64)
    order = out[:tiles].tolist()
    assert sorted(order) == list(range(tiles))
    held = [tile % tiles_a_split for tile in order]
    assert held == sorted(held, reverse=True)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_cut_walk_gives_the_same_output_with_and_without_gradients(problem, head_dim, only, monkeypatch):
    plans = only("forward", "dq", "dkdv", tile=TILE)
    monkeypatch.setattr(tuning, "uses_bf16x6", lambda *key: False)
    monkeypatch.setattr(split, "STEP", 32)
    monkeypatch.setattr(split, "LONG", 0)
    made = problem((1, 1, 1, 100, 100, head_dim), torch.float32, causal=True)
    with torch.no_grad():
        out = triton_fa2.attention(made.q, made.k, made.v, causal=True)
    assert out.equal(made.run(triton_fa2.attention)["out"])
    (used,) = plans.values()
    assert used.problem.forward_split.count > 1
