"""What is decided once per shape: tiles, grids, descriptors and launches; and the autograd function that uses it."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.forward_launch import Forward
from kernels.attention.gluon_hopper.gradients import Given, NarrowBackward
from kernels.attention.gluon_hopper.gradients_apart import WideBackward
from kernels.attention.gluon_hopper.gradients_assisted import AssistedBackward
from kernels.attention.gluon_hopper.launch import addressable, empty_addressable, is_addressable

_PLANS: dict[tuple[Any, ...], Plan] = {}
_MAX_PLANS = 4096


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float
) -> torch.Tensor:
    """Attention of tensors that belong together, none of them empty, for a positive scale."""
    plan = plan_of(q, k, v, causal, window_size, softmax_scale)
    if plan is None:
        q, k, v = addressable(q), addressable(k), addressable(v)
        plan = plan_of(q, k, v, causal, window_size, softmax_scale)
    return attend_by(plan, q, k, v)


def attend_by(plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention by the plan of these tensors; gradients flow if any of them wants one."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, plan)
    return plan.output(q, k, v)


def known_plan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float
) -> Plan | None:
    """The plan that an earlier call with such tensors made, if one did."""
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15:
        return None
    return _PLANS.get(_key(q, k, v, causal, window_size, softmax_scale))


def plan_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float
) -> Plan | None:
    """The plan of these shapes and strides, or None if the copy engine cannot address them."""
    plan = known_plan(q, k, v, causal, window_size, softmax_scale)
    if plan is None and all(map(is_addressable, (q, k, v))):
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        plan = Plan(q, k, v, causal, window_size, softmax_scale)
        _PLANS[_key(q, k, v, causal, window_size, softmax_scale)] = plan
    return plan


def _key(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float
) -> tuple[Any, ...]:
    return (
        *(q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.shape, k.shape, v.shape),
        *(q.stride(), k.stride(), v.stride(), causal, window_size, softmax_scale),
    )


class _Attention(torch.autograd.Function):
    """Saves q, k, v, out and lse; the backward recomputes the scores."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan) -> torch.Tensor:
        out, lse = plan.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.plan.backward(*ctx.saved_tensors, dout), None


class Plan:
    """The launches for one shape and set of strides, all addressable by the copy engine."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window_size: int,
        softmax_scale: float,
    ) -> None:
        self.device = q.device
        self.batch, self.num_heads, self.seqlen_q, self.head_dim = q.shape
        self.num_kv_heads, self.seqlen_k = k.shape[1:3]
        self.n_heads, self.group_size = self.batch * self.num_heads, self.num_heads // self.num_kv_heads
        self.size = tuning.padded_head_dim(self.head_dim)
        self.causal, self.window_size, self.softmax_scale = causal, window_size, softmax_scale
        self._backwards: dict[tuple[Any, ...], AssistedBackward | NarrowBackward | WideBackward] = {}
        self._as_like = not self.head_dim % 8 and all(map(_is_dense, (q, k, v)))
        self._forward = Forward(self, q, k, v)

    def masked(self, block_n: int) -> bool:
        """Whether any block of keys needs a mask."""
        return self.causal or self.window_size > 0 or self.seqlen_k % block_n > 0

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        with _device_guard(self.device):
            return self._forward(q, k, v)

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output alone."""
        return self.forward(q, k, v)[0]

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dq, dk and dv.

        Up to head_dim 128 the last bits of dq depend on the order of additions, unless PyTorch is told to be
        deterministic (torch.use_deterministic_algorithms), which takes longer.
        """
        given = Given(q, k, v, out, lse, addressable(dout))
        apart = self.size == 256 or torch.are_deterministic_algorithms_enabled()
        key = (given.dout.stride(), apart)
        launches = self._backwards.get(key)
        if launches is None:
            narrow = AssistedBackward if self._assisted() else NarrowBackward
            launches = self._backwards[key] = (WideBackward if apart else narrow)(self, given)
        with _device_guard(self.device):
            return launches(given)

    def _assisted(self) -> bool:
        programs = torch.cuda.get_device_properties(self.device).multi_processor_count
        shape = (self.batch * self.num_kv_heads, self.group_size, self.seqlen_q, self.seqlen_k)
        return tuning.assisted(self.size, *shape, self.causal, self.window_size > 0, programs)

    def new(self, like: torch.Tensor) -> torch.Tensor:
        """Room for a result with the shape and order of dimensions of `like`."""
        return torch.empty_like(like) if self._as_like else empty_addressable(like)


def _is_dense(x: torch.Tensor) -> bool:
    return torch.empty_like(x, device="meta").stride() == x.stride()


class _NoGuard:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


_NO_GUARD = _NoGuard()


def _device_guard(device: torch.device) -> Any:
    """Triton launches on the current device; nothing to do when the tensors are there."""
    return _NO_GUARD if device.index == torch.cuda.current_device() else torch.cuda.device(device)
