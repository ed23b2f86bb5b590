"""Attention with its logsumexp as a second, differentiable result, and the merge of two parts of the keys."""

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import plans


def merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention to the keys of both parts, and its logsumexp, from attention to each part alone.

    out: (batch, num_heads, seqlen_q, head_dim_v); lse: natural logarithm, (batch, num_heads, seqlen_q), -inf for a
    query that sees no key. Differentiable. The result has the wider dtype of out_a and out_b.
    """
    top = torch.maximum(lse_a, lse_b).detach()
    top = top.masked_fill(top == float("-inf"), 0.0)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    total = a + b
    blind = total == 0
    total = total.masked_fill(blind, 1.0)
    out = (a / total)[..., None] * out_a + (b / total)[..., None] * out_b
    lse = (top + total.log()).masked_fill(blind, float("-inf"))
    return out.to(torch.promote_types(out_a.dtype, out_b.dtype)), lse


def natural(lse: torch.Tensor) -> torch.Tensor:
    """Return the natural logsumexp in float32 of that to base 2, in which rows that see no key have +inf."""
    blind = float("-inf")
    return (lse * math.log(2)).float().nan_to_num_(nan=math.nan, posinf=blind, neginf=blind)


def attend(
    call: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: plans.AttentionPlan | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute out and the natural logsumexp of a FeatureCall in float32, both differentiable; fill its max_logits.

    `plan` computes the same call faster, except for gradients of the logsumexp; where the call has max_logits, the plan
    has `forward_with_more`.
    """
    learned = (call.features.mask,) if call.features.mask_is_learned else ()
    return _AttentionWithLse.apply(call, plan, q, k, v, call.features.sinks, *learned)


class _AttentionWithLse(torch.autograd.Function):
    """Saves q, k, v, out and the base-2 logsumexp; the gradient of the logsumexp joins delta."""

    @staticmethod
    def forward(
        ctx: Any, call: Any, plan: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if plan is not None and plan.prepare is not None:
            q, k, v = map(plan.prepare, (q, k, v))
        if with_more := getattr(plan, "forward_with_more", None):
            out, lse, shown = with_more(q, k, v, call.max_logits)
        else:
            out, lse = (plan or call).forward(q, k, v)
            shown = natural(lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call, ctx.plan = call, plan
        ctx.set_materialize_grads(False)
        return out, shown

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        *_, out, lse = ctx.saved_tensors
        saved = (*ctx.saved_tensors, torch.zeros_like(out) if dout is None else dout)
        if dlse is None and ctx.plan is not None:
            return None, None, *ctx.plan.backward(*saved), None
        if dlse is not None:
            dlse = dlse.float().masked_fill(lse == float("inf"), 0.0).contiguous()
        return None, None, *ctx.call.backward(*saved, dlse=dlse)
