"""Few shared key heads: the backward gives query heads keys of their own. Launches need a GPU, the way there not."""

from types import SimpleNamespace

import pytest
import torch

from kernels import reference
from kernels.attention.gluon_hopper import tuning

plan = pytest.importorskip("kernels.attention.gluon_hopper.plan", exc_type=ImportError)


@pytest.mark.parametrize(
    ("kv_heads", "group", "seqlen", "apart"),
    [
        (1, 32, 4096, True),  # multi-query attention, where 32 tiles of keys leave 100 of 132 multiprocessors idle
        (2, 16, 2048, True),
        (8, 5, 2048, False),  # 128 tiles
        (8, 4, 4096, False),
        (32, 1, 128, False),  # nothing is shared
        (1, 8, 512, False),  # too little to do
    ],
)
def test_heads_are_taken_apart_where_key_tiles_are_few(kv_heads: int, group: int, seqlen: int, apart: bool) -> None:
    assert tuning.computes_heads_apart(kv_heads, group, seqlen, seqlen, 132) == apart


def test_the_backward_of_such_a_plan_is_that_of_one_with_as_many_key_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    q, out, dout = (torch.randn(2, 4, 9, 8, dtype=torch.float64) for _ in range(3))
    k, v = (torch.randn(2, 1, 9, 8, dtype=torch.float64) for _ in range(2))
    lse, asked = torch.randn(2, 4, 9), []

    def backward(q, k, v, given_out, given_lse, dout):
        assert given_out is out and given_lse is lse
        found = reference.gradients(q, k, v, dout, causal=True, softmax_scale=0.5)
        return found.dq, found.dk, found.dv

    def plan_of(q, k, v, *mask):
        asked.append((q.shape, k.shape, mask))
        return SimpleNamespace(backward=backward)

    monkeypatch.setattr(plan, "plan_of", plan_of)
    few = object.__new__(plan.GluonHopperPlan)
    few._heads_apart, few.causal, few.window_size, few.softmax_scale = True, True, 0, 0.5
    got = few.backward(q, k, v, out, lse, dout)
    assert asked == [(q.shape, q.shape, (True, 0, 0.5))]
    exact = reference.gradients(q, k, v, dout, causal=True, softmax_scale=0.5)
    for tensor, name in zip(got, ("dq", "dk", "dv"), strict=True):
        torch.testing.assert_close(tensor, getattr(exact, name))
