"""Level decode: a few query tokens of each sequence against its contiguous KV cache, no gradients.

The cache has room for more tokens than the context, and NaN stands there: an implementation that reads beyond the
context without hiding it gives NaN, which no check passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels import reference
from kernels.registry import DecodeAttention, UnsupportedCase
from results.records import Case, decode_case
from runner.levels import Call, Pass, Trial, fill_normal, generator_of

PASSES = (Pass("decode", "decode step", ("decode",), ("out",)),)
ROOM = 128  # tokens of the cache beyond the context
_SMALL_CONTEXT = 64


@dataclass(frozen=True)
class DecodeInputs:
    """The query tokens, the cache, and how much of it is in use; all standard normal."""

    case: Case
    q: torch.Tensor  # (batch, num_heads, query tokens, head_dim)
    k_cache: torch.Tensor  # (batch, num_kv_heads, context + ROOM, head_dim), NaN beyond the context
    v_cache: torch.Tensor  # (batch, num_kv_heads, context + ROOM, head_dim_v), likewise
    cache_seqlens: torch.Tensor  # int32 (batch,), the context

    @property
    def device(self) -> torch.device:
        """Return where the tensors are."""
        return self.q.device

    @property
    def k(self) -> torch.Tensor:
        """Return the keys in use: (batch, num_kv_heads, context, head_dim)."""
        return self.k_cache[:, :, : self.case.seqlen_k]

    @property
    def v(self) -> torch.Tensor:
        """Return the values in use: (batch, num_kv_heads, context, head_dim_v)."""
        return self.v_cache[:, :, : self.case.seqlen_k]

    def fill(self, seed: int) -> None:
        """Write the data of a seed into the tensors; on one kind of device the same seed gives the same data."""
        generator = generator_of(self.case, self.device, seed)
        fill_normal((self.q, self.k_cache, self.v_cache), generator)
        for cache in (self.k_cache, self.v_cache):
            cache[:, :, self.case.seqlen_k :] = math.nan

    def bytes_of(self, mode: str) -> int:
        """Return the bytes of q and of the keys and values in use."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.q, self.k, self.v))

    def result_shapes(self) -> list[torch.Size]:
        """Return the shape of out, twice."""
        return [torch.Size((*self.q.shape[:3], self.v_cache.shape[3]))] * 2


def empty_inputs(case: Case, device: str) -> DecodeInputs:
    """Return the tensors of a case, the cache with whatever its memory held.

    Raises UnsupportedCase for a paged or latent cache.
    """
    if case.page_size or case.latent_dim:
        raise UnsupportedCase("Only contiguous caches of keys and values are measured; page_size and latent_dim are 0.")
    dtype, capacity = getattr(torch, case.dtype), case.seqlen_k + ROOM
    keys = (case.batch, case.num_kv_heads, capacity)
    shapes = (
        (case.batch, case.num_heads, case.seqlen_q, case.head_dim),
        (*keys, case.head_dim),
        (*keys, case.head_dim_v or case.head_dim),
    )
    q, k_cache, v_cache = (torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    cache_seqlens = torch.full((case.batch,), case.seqlen_k, dtype=torch.int32, device=device)
    return DecodeInputs(case, q, k_cache, v_cache, cache_seqlens)


def trial(attention: DecodeAttention, inputs: DecodeInputs, mode: str) -> Trial:
    """Return the call of the mode; it is its only pass."""
    return Trial(call(attention, inputs, mode))


def call(attention: DecodeAttention, inputs: DecodeInputs, mode: str) -> Call:
    """Return one step of decoding, without gradients."""
    case = inputs.case
    mask = {"causal": bool(case.causal), "window_size": case.window_size or 0}

    def decode() -> torch.Tensor:
        with torch.no_grad():
            return attention(
                inputs.q,
                inputs.k_cache,
                inputs.v_cache,
                context=case.seqlen_k,
                cache_seqlens=inputs.cache_seqlens,
                **mask,
            )

    return decode


def kept_for_backward(attention: DecodeAttention, inputs: DecodeInputs, mode: str) -> Call | None:
    """Return None: nothing is kept for a backward."""
    return None


def oracle(inputs: DecodeInputs, modes: tuple[str, ...], *, fp8: bool = False) -> dict[str, torch.Tensor]:
    """Return out in float64, from the cache as it is stored, one sequence after the other to save memory."""
    if fp8:
        raise NotImplementedError("Decoding has no oracle for inputs rounded to FP8.")
    mask = {"causal": bool(inputs.case.causal), "window_size": inputs.case.window_size or 0}
    rows = zip(inputs.q.split(1), inputs.k.split(1), inputs.v.split(1), strict=True)
    return {"out": torch.cat([reference.attention(q, k, v, **mask).out for q, k, v in rows])}


def small_case(dtype: str, head_dim: int) -> Case:
    """Return one sequence with one head and 64 tokens in its cache."""
    return decode_case(batch=1, num_heads=1, num_kv_heads=1, context=_SMALL_CONTEXT, head_dim=head_dim, dtype=dtype)
