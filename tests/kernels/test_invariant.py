"""Within `batch_invariant`, a sequence has the same bits in any batch, with any padding behind it."""

import pytest
import torch

import kernels
from kernels import feature_calls, reference
from kernels.registry import UnsupportedCase

pytest.importorskip("triton")
SHORT, LONG = 21, 40


@pytest.fixture
def interpreted(monkeypatch):
    """Send calls to the kernels as on a GPU; they run in the interpreter."""
    monkeypatch.setattr(feature_calls, "takes", lambda *asked: True)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def results(attend, *tensors: torch.Tensor, dout: torch.Tensor) -> list[torch.Tensor]:
    """Return out, dq, dk and dv."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    with kernels.batch_invariant():
        out = attend(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def assert_same_bits(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert [torch.equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * 4


def test_a_sequence_is_the_same_alone_in_a_batch_and_padded(interpreted) -> None:
    tensors, dout = [numbers(2, 1, LONG, 16, seed=i) for i in range(3)], numbers(2, 1, LONG, 16, seed=3)
    dout[0, :, SHORT:] = 0.0

    def attend(q, k, v, **options):
        return kernels.attention(q, k, v, causal=True, **options)

    whole = results(attend, *tensors, dout=dout)
    alone = results(attend, *(x[:1, :, :SHORT] for x in tensors), dout=dout[:1, :, :SHORT])
    assert_same_bits([x[:1, :, :SHORT] for x in whole], alone)
    real = torch.arange(LONG)[None, None, None] < torch.tensor([SHORT, LONG])[:, None, None, None]
    masked = results(lambda q, k, v: kernels.attention(q, k, v, mask=real), *tensors, dout=dout)
    full = results(kernels.attention, *(x[:1, :, :SHORT] for x in tensors), dout=dout[:1, :, :SHORT])
    assert_same_bits([x[:1, :, :SHORT] for x in masked], full)


def test_a_packed_sequence_is_the_same_alone_and_behind_another(interpreted) -> None:
    tensors, dout = [numbers(SHORT + LONG, 1, 16, seed=i) for i in range(3)], numbers(SHORT + LONG, 1, 16, seed=3)

    def packed(*lengths: int):
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        return lambda q, k, v: kernels.attention_varlen(q, k, v, starts, starts, *[max(lengths)] * 2, causal=True)

    both = results(packed(LONG, SHORT), *tensors, dout=dout)
    alone = results(packed(SHORT), *(x[LONG:] for x in tensors), dout=dout[LONG:])
    assert_same_bits([x[LONG:] for x in both], alone)


@pytest.mark.parametrize("page", [0, 16])
def test_a_step_of_decoding_is_the_same_in_any_batch_and_cache(interpreted, page: int) -> None:
    q, k, v = numbers(2, 4, 2, 16), numbers(2, 2, 48, 16, seed=1), numbers(2, 2, 48, 16, seed=2)
    lengths = torch.tensor([SHORT, LONG], dtype=torch.int32)
    caches, options = (k, v), {"cache_seqlens": lengths}
    if page:
        caches = tuple(x.transpose(1, 2).reshape(6, page, 2, 16) for x in (k, v))
        options["page_table"] = torch.arange(6, dtype=torch.int32).view(2, 3)
    with kernels.batch_invariant():
        both, lse = kernels.decode(q, *caches, return_lse=True, **options)
        alone = kernels.decode(q[:1], k[:1, :, :SHORT], v[:1, :, :SHORT])
    assert torch.equal(both[:1], alone) and lse.shape == (2, 4, 2)
    exact = reference.attention(q[:1], k[:1, :, :SHORT], v[:1, :, :SHORT], causal=True).out
    torch.testing.assert_close(alone.double(), exact, rtol=1e-5, atol=1e-5)


def test_what_the_kernels_do_not_take_is_refused_and_the_block_ends_as_it_began() -> None:
    q = numbers(1, 1, 8, 16)
    kernels.attention(q, q.clone(), q.clone())  # seen before
    for call in (kernels.attention, lambda *x: kernels.attention(*x, softcap=2.0), kernels.decode):
        with kernels.batch_invariant(), pytest.raises(UnsupportedCase, match="one dtype of bfloat16, .* on a GPU"):
            call(q, q.clone(), q.clone())
    with kernels.batch_invariant(), pytest.raises(UnsupportedCase, match="latents"):
        kernels.mla_decode(q, q[0], softmax_scale=1.0)
    torch.testing.assert_close(kernels.attention(q, q, q), reference.attention(q, q, q).out.float())
