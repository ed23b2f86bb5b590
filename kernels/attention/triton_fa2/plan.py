"""The kernels of one shape in their order, and the autograd function that runs them."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels.attention.triton_fa2.backward import both_kernel
from kernels.attention.triton_fa2.checks import check, too_far
from kernels.attention.triton_fa2.combine import combine_gradients, combine_outputs
from kernels.attention.triton_fa2.dkdv import dkdv_kernel
from kernels.attention.triton_fa2.dq import dq_kernel
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.launch import INTERPRETED, device_guard
from kernels.attention.triton_fa2.launches import Launches, gradient_slots
from kernels.attention.triton_fa2.narrow import narrow_kernel
from kernels.attention.triton_fa2.shape import Shape
from kernels.attention.triton_fa2.split import Cut, slots_of

__all__ = ["INTERPRETED", "Plan", "attend"]

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_PLANS: dict[tuple[Any, ...], Plan] = {}
_MAX_PLANS = 4096
_FORWARD = {"forward": forward_kernel, "narrow": narrow_kernel}


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

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output alone."""
        out = torch.empty_like(q)
        self._forward(q, k, v, out, None)
        return out

    def forward_with_lse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=self.shape.lse_dtype, device=q.device)
        self._forward(q, k, v, out, lse)
        return out, lse

    def _forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        shape, launches, cut = self.shape, self._launches, self.shape.forward_cut
        kernel = _FORWARD[shape.forward]
        with device_guard(shape.device):
            q, k, v, kt = (q, k, v, k) if shape.forward == "narrow" else self._laid_out(q, k, v)
            if cut is None:
                name = shape.forward if lse is None else f"{shape.forward} with lse"
                launches.attend((name, None), kernel, None, (q, k, v, out), (out if lse is None else lse, kt))
                return
            parts = slots_of(out, cut.pieces)
            lses = torch.empty(parts.shape[:3], dtype=shape.lse_dtype, device=shape.device)
            launches.attend((f"{shape.forward} with lse", None), kernel, cut, (q, k, v, parts), (lses, kt))
            both_lse = (lses, out if lse is None else lse)
            launches.combine(("outputs", lse is not None), combine_outputs, (parts,), (out,), cut, lse=both_lse)

    def _laid_out(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k and v, or their pieces, and what forward_kernel calls kt: a transposed copy of k if it works on one."""
        launches, kt = self._launches, k
        if self.shape.precision == "ieee":
            (kt,) = launches.copies_of(k)
            launches.prepare("k", "k", (q, q, q, k, v), (q, q, kt, v, q), delta=False)
        elif self.shape.precision == "pieces":
            copies = launches.copies_of(q, k, v)
            launches.prepare("q, k, v", "qkv", (q, q, q, k, v), (copies[0], q, *copies[1:], q), delta=False)
            q, k, v = copies
        return q, k, v, kt

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
        shape = self.shape
        gradients = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        delta = torch.empty_like(lse, dtype=torch.float32)
        dout_key = (dout.stride(), dout.data_ptr() & 15)
        with device_guard(shape.device):
            qt, dot, kt, vt = self._launches.copies_of(q, q, k, v) if shape.copied else (q, dout, k, v)
            if shape.copied or shape.both or shape.fused:
                copies = "qdkv" if shape.copied else ""
                key = ("q, dout, k, v", dout_key)
                self._launches.prepare(key, copies, (q, dout, out, k, v), (qt, dot, kt, vt, delta), delta=True)
            if shape.precision == "pieces":
                q, k, v, dout = qt, kt, vt, dot
            factors, copies = (q, k, v, dout), (lse, delta, qt, kt, vt, dot)
            if not (shape.fused and self._fused(dout_key, factors, copies, gradients)):
                if shape.both:
                    self._both(dout_key, factors, copies, gradients)
                else:
                    self._apart(dout_key, factors, out, copies, gradients)
        return gradients

    def _fused(self, dout_key: Any, factors: Any, copies: Any, gradients: Tensors) -> bool:
        """In one walk; False if its tile does not fit this device."""
        shape = self.shape
        walk = shape.fused_cut or Cut(1, max(1, shape.seqlen_q))
        tile = shape.tiles("fused")[0]
        keys = min(shape.seqlen_k, shape.window(16) + tile.block_n)
        cuts = (walk, Cut(-(-keys // tile.block_n) + (keys < shape.seqlen_k), tile.block_n))
        parts = gradient_slots(gradients, cuts)
        lse, delta, qt, _, _, dot = copies
        shape.fused = self._launches.fused(dout_key, factors, (lse, delta, qt, dot), parts, cuts)
        if shape.fused:
            self._launches.combine(("gradients", None), combine_gradients, parts, gradients, *cuts)
        return shape.fused

    def _both(self, dout_key: Any, factors: Any, copies: Any, gradients: Tensors) -> None:
        """dq, dk and dv in one launch, of pieces of the walks if they are cut."""
        cut = self.shape.both_cut
        parts = gradients if cut is None else gradient_slots(gradients, (cut, cut))
        self._launches.attend(("both", dout_key), both_kernel, cut, (*factors, *parts), copies)
        if cut:
            self._launches.combine(("gradients", None), combine_gradients, parts, gradients, cut, cut)

    def _apart(self, dout_key: Any, factors: Any, out: torch.Tensor, copies: Any, gradients: Tensors) -> None:
        """dq, then dk and dv."""
        (q, k, v, dout), (dq, dk, dv), (lse, delta, qt, kt, vt, dot) = factors, gradients, copies
        attend = self._launches.attend
        attend(("dq", dout_key), dq_kernel, None, (q, k, v, out, dout, dq), (lse, delta, kt, vt))
        attend(("dkdv", dout_key), dkdv_kernel, None, (q, k, v, dout, dk, dv), (lse, delta, qt, dot))
