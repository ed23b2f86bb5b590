"""Documents in rows of tokens on the kernels of packed sequences; their ids are read on the device alone.

A row whose ids never fall, with not too many documents, is a call of packed sequences. Other rows are left to
triton_fa2's kernels, whose programs end at once elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
import triton
import triton.language as tl

from ...features import Features, SequenceBounds
from ...plans import Masks, device_guard
from ...tables import family
from ..triton_fa2.features.call import FeatureCall, addressable
from .packed import PackedCall, packed_like

_AT_ONCE = 4096  # ids that a program reads at a time


@triton.jit(do_not_specialize=["seqlen", "most"])
def document_bounds_kernel(ids, bounds, seqlen, most, AT_ONCE: tl.constexpr):
    """Store where up to `most` documents of a row begin, then the row's end: there alone if the row is left."""
    ids += tl.program_id(0) * seqlen
    bounds += tl.program_id(0) * (most + 1)
    found, falls = 0, 0
    for first in range(0, seqlen, AT_ONCE):
        tokens = first + tl.arange(0, AT_ONCE)
        later = (tokens > 0) & (tokens < seqlen)
        own = tl.load(ids + tokens, later, 0)
        before = tl.load(ids + tokens - 1, later, 0)
        begins = (tokens == 0) | (own != before)
        number = found - 1 + tl.cumsum(begins.to(tl.int32), 0)
        tl.store(bounds + number, tokens, begins & (number < most))
        found += tl.sum(begins.to(tl.int32), 0)
        falls += tl.sum((own < before).to(tl.int32), 0)
    taken = tl.where((falls == 0) & (found <= most), found, 0)
    tl.debug_barrier()  # what is stored of a row that is left comes after
    for first in range(0, most + 1, AT_ONCE):
        number = first + tl.arange(0, AT_ONCE)
        tl.store(bounds + number, seqlen, (number >= taken) & (number <= most))


class WithDocuments:
    """The forward and backward of whole rows of tokens with documents alone, of head_dims that `takes_packed`."""

    prepare = None

    def __init__(self, features: Features, q: torch.Tensor, masks: Masks) -> None:
        self.features, self._call = features, FeatureCall(features, *masks, "ieee")
        least = family("sm_90")["gluon_hopper documents"].first(head_dim=q.shape[3], causal=masks[0])[0]
        self._most = max(1, q.shape[2] // least)  # documents of a row; with more, triton_fa2 is faster

    @cached_property
    def _calls(self) -> tuple[list[PackedCall], FeatureCall]:
        """Return the calls of each row's packed sequences, and that of the rows that are left."""
        call, ids = self._call, self.features.document_ids.contiguous()  # type: ignore[union-attr]
        rows, seqlen = ids.shape
        bounds = torch.empty(rows, self._most + 1, dtype=torch.int32, device=ids.device)
        with device_guard(ids.device):
            document_bounds_kernel[(rows,)](ids, bounds, seqlen, self._most, AT_ONCE=_AT_ONCE, num_warps=16)
        left = bounds[:, 0].contiguous()  # the row's end, or 0
        rest = replace(call, bounds=SequenceBounds(None, left, None, left, seqlen, seqlen, packed=False))
        each = [SequenceBounds(x[:-1], x[1:], x[:-1], x[1:], seqlen, seqlen, packed=True) for x in bounds]
        return [PackedCall(x, call.causal, 0, call.scale) for x in each], rest

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (batch, num_heads, seqlen)."""
        q, k, v = map(addressable, (q, k, v))
        out, lse = packed_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        for call, *row in zip(self._calls[0], *(x.split(1) for x in (q, k, v, out, lse)), strict=True):
            call.forward(*row)
        self._calls[1].launch("forward", (q, k, v, out), (lse,), (q, k, v))
        return out, lse

    def backward(self, *saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        """Return dq, dk, dv, and None for sinks; saved: q, k, v, out, lse and dout."""
        (q, k, v, dout), (out, lse) = (addressable(saved[at]) for at in (0, 1, 2, 5)), saved[3:5]
        dq, dk, dv = map(packed_like, (q, k, v))
        tensors = q, k, v, out, lse, dout, dq, dk, dv
        for call, *row in zip(self._calls[0], *(x.split(1) for x in tensors), strict=True):
            call.backward(*row[:6], room=row[6:])
        statistics, rest = (lse, torch.empty_like(lse)), self._calls[1]  # delta is written first
        rest.launch("dq", (q, k, v, out, dout, dq), statistics, (q, k, v))
        rest.launch("dkdv", (q, k, v, dout, dk, dv), statistics, (q, k, v))
        return dq, dk, dv, None
