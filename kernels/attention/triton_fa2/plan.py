"""Forward and backward of one shape, and the autograd function that runs them."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels.attention.triton_fa2 import launches as steps
from kernels.attention.triton_fa2.launch import INTERPRETED, device_guard
from kernels.attention.triton_fa2.launches import Launches, compile_launches
from kernels.attention.triton_fa2.problem import Shape, check, too_far

__all__ = ["INTERPRETED", "Plan", "attend"]

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_PLANS: dict[tuple[Any, ...], Plan] = {}
_MAX_PLANS = 4096


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    window_size: int,
    scale: float | None,
    precision: str,
) -> torch.Tensor:
    """Attention by the plan of these shapes; gradients flow if any input wants them."""
    if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    key = (
        *(q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.shape, k.shape, v.shape),
        *(q.stride(), k.stride(), v.stride(), q.data_ptr() & 15, k.data_ptr() & 15, v.data_ptr() & 15),
        *(causal, window_size, scale, precision),
    )
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = Plan(q, k, v, causal, window_size, scale, precision)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, plan)
    return plan.forward(q, k, v)


class _Attention(torch.autograd.Function):
    """Saves q, k, v, out and the logsumexp; the backward recomputes the scores."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan) -> torch.Tensor:
        out, lse = plan.forward_with_lse(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.plan.backward(*ctx.saved_tensors, dout), None


class Plan:
    """Forward and backward of one shape.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim); last dim contiguous.
    Raises UnsupportedCase if the tensors do not belong together or the kernels cannot take them.
    """

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window_size: int,
        scale: float | None,
        precision: str,
    ) -> None:
        check(q, k, v)
        self.shape = Shape(q, k, causal, window_size, scale, precision)
        self._launches = Launches(self.shape)
        self._compiled: set[bool] = set()  # whether the forward stores lse
        self._backwards: dict[Any, Launches] = {}  # by dout's strides and alignment

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output alone."""
        out = torch.empty_like(q)
        with device_guard(self.shape.device):
            if False not in self._compiled:
                compile_launches(self.shape, steps.forward, (q, k, v, out, None))
                self._compiled.add(False)
            steps.forward(self._launches, q, k, v, out, None)
        return out

    def forward_with_lse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=self.shape.lse_dtype, device=q.device)
        with device_guard(self.shape.device):
            if True not in self._compiled:
                compile_launches(self.shape, steps.forward, (q, k, v, out, lse))
                self._compiled.add(True)
            steps.forward(self._launches, q, k, v, out, lse)
        return out, lse

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> Tensors:
        """dq, dk and dv."""
        if dout.stride(-1) != 1 or too_far(dout):
            dout = dout.contiguous()
        gradients = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        delta = torch.empty_like(lse, dtype=torch.float32)
        key = (dout.stride(), dout.data_ptr() & 15)
        with device_guard(self.shape.device):
            launches = self._backwards.get(key)
            if launches is None:
                compile_launches(self.shape, steps.backward, (q, k, v, dout, out, lse, delta, gradients))
                launches = self._backwards[key] = Launches(self.shape)
            steps.backward(launches, q, k, v, dout, out, lse, delta, gradients)
        return gradients
