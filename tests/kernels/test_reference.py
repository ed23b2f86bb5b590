"""The float64 oracle against PyTorch's own attention and arithmetic."""

import math

import pytest
import torch

from kernels import reference
from tests.cases import named


def by_autograd(q, k, v, dout, *, causal, window_size, softmax_scale):
    """The definition, position by position, differentiated by autograd; independent of the code under test."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    scores = q @ k.repeat_interleave(group, 1).mT * (softmax_scale or q.shape[-1] ** -0.5)
    seen = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    for row in range(q.shape[2]):
        position = row + k.shape[2] - q.shape[2]
        for key in range(k.shape[2]):
            behind = position - key
            near = not window_size or abs(behind) < window_size
            seen[row, key] = near and (behind >= 0 or not causal)
    sums = (scores.exp() * seen).sum(-1, keepdim=True)
    p = scores.exp() * seen / torch.where(sums == 0, 1.0, sums)
    out = p @ v.repeat_interleave(group, 1)
    return out.detach(), sums.squeeze(-1).log().detach(), *torch.autograd.grad(out, (q, k, v), dout.double())


@pytest.mark.parametrize("softmax_scale", [None, 0.7, -0.3])
@pytest.mark.parametrize(("sizes", "causal", "window_size"), named(__file__, "cases"))
@pytest.mark.parametrize("chunk_bytes", [1 << 30, 300])
def test_it_agrees_with_autograd_of_the_definition(monkeypatch, sizes, causal, window_size, softmax_scale, chunk_bytes):
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim = sizes
    monkeypatch.setattr(reference, "CHUNK_BYTES", chunk_bytes)
    torch.manual_seed(1)
    q, dout = (torch.randn(batch, heads, seqlen_q, head_dim) for _ in range(2))
    k, v = (torch.randn(batch, kv_heads, seqlen_k, head_dim) for _ in range(2))
    keywords = {"causal": causal, "window_size": window_size, "softmax_scale": softmax_scale}
    expected = by_autograd(q, k, v, dout, **keywords)
    got = reference.gradients(q, k, v, dout, **keywords)
    for name, value in zip(("out", "lse", "dq", "dk", "dv"), expected, strict=True):
        torch.testing.assert_close(getattr(got, name), value, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
    forward = reference.attention(q, k, v, **keywords)
    torch.testing.assert_close(forward.out, got.out, rtol=0, atol=0)
    torch.testing.assert_close(forward.lse, got.lse, rtol=0, atol=0)


def test_a_row_that_sees_no_key_is_zero_with_a_logsumexp_of_minus_infinity():
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)
    got = reference.gradients(q, k, v, torch.ones_like(q), causal=True)
    assert got.out[0, 0, :2].eq(0).all()
    assert got.dq[0, 0, :2].eq(0).all()
    assert got.lse[0, 0, :2].tolist() == [-math.inf, -math.inf]
    torch.testing.assert_close(got.out[0, 0, 2], v[0, 0, 0].double())


def test_large_scores_do_not_overflow_and_inputs_stay_as_they_were_and_need_no_gradient():
    q = torch.full((1, 1, 2, 4), 300.0)
    got = reference.attention(q, q, torch.eye(2, 4).view(1, 1, 2, 4), causal=False)
    torch.testing.assert_close(got.out[0, 0, :, :2], torch.full((2, 2), 0.5).double())
    q = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    before = q.detach().clone()
    got = reference.gradients(q, q, q, q, causal=True)
    assert not got.out.requires_grad
    assert q.detach().equal(before)
