"""The readable references of report flashtile_a100, and what they keep in memory."""

import pytest
import torch

from kernels.attention import tiled
from tests.cases import cases

BOTH = {each.name: each.attention for each in tiled.IMPLEMENTATIONS}
CASES = cases(__file__, "CASES")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("attention", BOTH.values(), ids=BOTH.keys())
def test_outputs_and_gradients_are_as_near_the_oracle_as_naive(problem, attention, case, dtype) -> None:
    shape, causal, window_size = case
    problem(shape, dtype, causal=causal, window_size=window_size).check(attention)


def blocks_of(monkeypatch, attention, *, causal: bool) -> list[tuple[int, int]]:
    """Return where the blocks start whose scores a forward computes, in their order."""
    seen = []

    def hidden(problem, rows, keys):
        seen.append((rows.start, keys.start))
        return computed(problem, rows, keys)

    computed = tiled.TiledProblem.hidden
    monkeypatch.setattr(tiled.TiledProblem, "hidden", hidden)
    x = torch.randn(1, 1, 128, 16)
    attention(x, x, x, causal=causal)
    return seen


def test_the_second_version_has_queries_outside_and_alone_leaves_out_what_the_mask_hides(monkeypatch) -> None:
    assert blocks_of(monkeypatch, BOTH["tiled_v1"], causal=True) == [(0, 0), (64, 0), (0, 64), (64, 64)]
    assert blocks_of(monkeypatch, BOTH["tiled_v2"], causal=True) == [(0, 0), (64, 0), (64, 64)]
    assert blocks_of(monkeypatch, BOTH["tiled_v2"], causal=False)[-4:] == [(0, 0), (0, 64), (64, 0), (64, 64)]


@pytest.mark.parametrize("attention", BOTH.values(), ids=BOTH.keys())
def test_what_is_kept_for_the_backward_grows_with_seqlen_and_not_with_its_square(attention) -> None:
    def kept(seqlen: int) -> int:
        q, k, v = (torch.randn(1, heads, seqlen, 16, requires_grad=True) for heads in (4, 2, 2))
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            attention(q, k, v, causal=True)
        return sum(sizes)

    assert kept(512) == 4 * kept(128) == 4 * (2 * 4 * 128 * 16 + 2 * 2 * 128 * 16 + 4 * 128)
