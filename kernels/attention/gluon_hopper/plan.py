"""Which kernels a call takes, and the autograd function around them."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels.attention.gluon_hopper import launch
from kernels.attention.triton_fa2.plan import Plan as PortablePlan


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float
) -> torch.Tensor:
    """Attention of tensors that belong together, none of them empty, for a positive scale."""
    mask = launch.Mask(causal, window_size)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, mask, softmax_scale)
    return launch.forward(q, k, v, mask, softmax_scale)[0]


class _Attention(torch.autograd.Function):
    """Saves q, k, v, out and lse; the backward recomputes the scores."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: launch.Mask, softmax_scale: float
    ) -> torch.Tensor:
        out, lse = launch.forward(q, k, v, mask, softmax_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mask, ctx.softmax_scale = mask, softmax_scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        backward = launch.backward if launch.has_backward(dout.shape[3]) else _portable_backward
        return *backward(*ctx.saved_tensors, dout, ctx.mask, ctx.softmax_scale), None, None


def _portable_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    mask: launch.Mask,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v, out, dout = (launch.addressable(x) for x in (q, k, v, out, dout))
    plan = PortablePlan(q, k, v, mask.causal, mask.window_size, softmax_scale, "ieee")
    return plan.backward(q, k, v, out, lse, dout)
