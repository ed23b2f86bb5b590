"""Attention sinks on a plan without them: a logit in each head's denominator that has no value.

With a sink s, the sum of a row's exponentials grows by exp(s). So out is that without the sink times
2^(lse - lse'), where lse' = log2(2^lse + 2^s) to base 2, and the gradients of q, k and v are those of the same plan
with lse' in place of lse. The sink's own gradient is -sum over rows of 2^(s - lse') x delta, delta = sum(out x dout).
gpt-oss has such sinks (github.com/openai/gpt-oss, gpt_oss/torch/model.py).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ...features import Features, SequenceBounds
from ...plans import LOG2_E, AttentionPlan, Masks, Tensors, device_guard
from .packed import PackedCall
from .plan import plan_of

_ROWS = 32  # of a program
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def add_sinks_kernel(out, lse, sinks, strides, num_heads, seqlen_q, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                     BLOCK_D: tl.constexpr):  # fmt: skip
    """Add the sink of a head to rows of out and of the base-2 logsumexp, in place; rows that see no key stay."""
    head = tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    inside = rows < seqlen_q
    before = tl.load(lse + head * seqlen_q + rows, inside, float("inf"))
    sink = tl.load(sinks + head % num_heads).to(tl.float32) * _LOG2_E
    seen = before < float("inf")
    x = tl.where(seen, before, 0.0)
    top = tl.maximum(x, sink)
    after = top + tl.log2(tl.exp2(x - top) + tl.exp2(sink - top))
    place = out + (head // num_heads) * strides[0] + (head % num_heads) * strides[1]
    place += rows.to(tl.int64)[:, None] * strides[2] + columns[None, :]
    stored = inside[:, None] & (columns[None, :] < WIDTH)
    tile = tl.load(place, stored, 0.0).to(tl.float32) * tl.exp2(x - after)[:, None]
    tl.debug_barrier()  # every warp has read the logsumexp before one of them stores it with the sink
    tl.store(lse + head * seqlen_q + rows, tl.where(seen, after, before), inside)
    tl.store(place, tile.to(out.dtype.element_ty), stored)


@triton.jit
def sinks_gradient_kernel(out, dout, lse, sinks, parts, strides, dout_strides, num_heads, seqlen_q, ROWS: tl.constexpr,
                          WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Store the sum of 2^(sink - lse) x delta over rows; lse has the sinks. parts: (heads of all batches, programs)."""
    head = tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    inside = rows < seqlen_q
    sink = tl.load(sinks + head % num_heads).to(tl.float32) * _LOG2_E
    p = tl.exp2(sink - tl.load(lse + head * seqlen_q + rows, inside, float("inf")))
    b, h, rows, columns = head // num_heads, head % num_heads, rows.to(tl.int64)[:, None], columns[None, :]
    stored = inside[:, None] & (columns < WIDTH)
    place = b * strides[0] + h * strides[1] + rows * strides[2] + columns
    of_dout = b * dout_strides[0] + h * dout_strides[1] + rows * dout_strides[2] + columns * dout_strides[3]
    product = tl.load(out + place, stored, 0.0).to(tl.float32) * tl.load(dout + of_dout, stored, 0.0).to(tl.float32)
    tl.store(parts + head * tl.num_programs(0) + tl.program_id(0), tl.sum(p * tl.sum(product, 1)))


class WithSinks:
    """The forward and backward of a plan, with the sinks of features, as `triton_fa2`'s FeatureCall has them."""

    prepare = None

    def __init__(self, features: Features, plan: AttentionPlan) -> None:
        self.features, self._plan = features, plan

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        out, lse = self._plan.forward(*self._prepared(q, k, v))
        grid, sizes = _launch(out)
        with device_guard(out.device):
            add_sinks_kernel[grid](out, lse, self.features.sinks, out.stride()[:3], *sizes)
        return out, lse

    def backward(self, *saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return dq, dk, dv and the gradient of the sinks; saved: q, k, v, out, lse and dout."""
        out, lse, dout = saved[3:]
        sinks: Any = self.features.sinks
        grid, sizes = _launch(out)
        parts = torch.empty(grid[1], grid[0], dtype=torch.float32, device=out.device)
        with device_guard(out.device):
            strides = out.stride()[:3], dout.stride()
            sinks_gradient_kernel[grid](out, dout, lse, sinks, parts, *strides, *sizes)
        of_sinks = -parts.view(*out.shape[:2], grid[0]).sum((0, 2))
        return *self._plan.backward(*self._prepared(*saved[:3]), out, lse, dout), of_sinks.to(sinks.dtype)

    def _prepared(self, *tensors: torch.Tensor) -> Tensors:
        prepare = self._plan.prepare
        q, k, v = tensors if prepare is None else map(prepare, tensors)
        return q, k, v


def _launch(out: torch.Tensor) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the grid over rows of out, and the last arguments of both kernels."""
    batch, heads, rows, width = out.shape
    return (triton.cdiv(rows, _ROWS), batch * heads), (heads, rows, _ROWS, width, triton.next_power_of_2(width))


def with_sinks(
    features: Features, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds | None, masks: Masks
) -> WithSinks | None:
    """Return gluon_hopper's plan of tensors with sinks, or None if TMA cannot address them.

    `bounds` are those of packed sequences; `masks`: causal, window_size and softmax_scale.
    """
    plan = plan_of(q, k, v, *masks) if bounds is None else PackedCall(bounds, *masks)
    return None if plan is None else WithSinks(features, plan)
