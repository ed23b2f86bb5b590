"""The entry: attention by the plan of its shapes, which holds one problem's launches forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ... import plans, tables
from ...features import Window
from ...plans import GradientRoom, PlanCache, Tensors, device_guard, plan_key
from .launches import Launches, recorded
from .problem import MAX_ROW_STRIDE, TritonProblem, check

Options = tuple[bool, Window, float | None, str]  # causal, window_size, scale, and the precision of float32 products
_PLANS: PlanCache[TritonPlan] = PlanCache()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> torch.Tensor:
    """Compute attention by the plan of these tensors; gradients flow if any input wants them."""
    if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return plans.attend(plan_of(q, k, v, *options), q, k, v)


def plan_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> TritonPlan:
    """Return the plan of these tensors, whose last dimension is contiguous."""
    key = plan_key(q, k, v, options)
    return _PLANS.get(key) or _PLANS.remember(key, TritonPlan(q, k, v, *options))


class TritonPlan:
    """Forward and backward of one shape, as `kernels.plans.AttentionPlan`.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim); last dim contiguous.
    Raises UnsupportedCase if the tensors do not belong together or the kernels cannot take them.
    """

    prepare: plans.Prepare | None = None

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> None:
        check(q, k, v)
        self.problem = TritonProblem.of(q, k, *options)
        self._forms = tables.in_use()
        batch, heads, rows = q.shape[:3]
        self._rows = (batch, heads, rows), (heads * rows, rows, 1)  # sizes and strides of lse
        self._output: Callable[..., None] | None = None
        self._output_with_lse: Callable[..., None] | None = None
        self._backwards: dict[Any, Callable[..., None]] = {}  # by dout's strides and alignment
        self._new_gradients = GradientRoom(q, k, v, torch.empty_like)

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return out alone."""
        out = torch.empty_like(q)
        if self._output is None:
            self._output = self._recorded(Launches.forward, q, k, v, out)
        self._output(q, k, v, out)
        return out

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        out = torch.empty_like(q)
        lse = torch.empty_strided(*self._rows, dtype=self.problem.lse_dtype, device=self.problem.device)
        if self._output_with_lse is None:
            self._output_with_lse = self._recorded(Launches.forward, q, k, v, out, lse)
        self._output_with_lse(q, k, v, out, lse)
        return out, lse

    def backward(self, *saved: torch.Tensor) -> Tensors:
        """Return dq, dk and dv; saved: q, k, v, out, lse and dout."""
        q, k, v, out, lse, dout = saved
        strides = dout.stride()
        if strides[-1] != 1 or strides[-2] >= MAX_ROW_STRIDE:
            dout = dout.contiguous()
            strides = dout.stride()
        gradients = self._new_gradients(q, k, v)
        key = (strides, dout.data_ptr() & 15)
        launches = self._backwards.get(key)
        if launches is None:
            launches = self._recorded(Launches.backward, q, k, v, dout, out, lse, *gradients)
            self._backwards[key] = launches
        launches(q, k, v, dout, out, lse, *gradients)
        return gradients

    def _recorded(self, walk: Callable[..., None], *tensors: torch.Tensor) -> Callable[..., None]:
        with device_guard(self.problem.device), tables.using(*self._forms):
            return recorded(self.problem, walk, tensors)
