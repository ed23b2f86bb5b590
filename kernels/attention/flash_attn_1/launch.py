"""Launches of the kernels of FlashAttention-1, with gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch.autograd.function import once_differentiable

from ...constants import Constants
from ...plans import check_inputs, device_guard
from ...registry import UnsupportedCase
from ...tables import family
from .kernels import Fa1Config, Fa1Sizes, Heads, backward_kernel, forward_kernel

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MAX_HEAD_DIM = 256  # of the tiles


@cache
def options_of(direction: str, size: int, head_dim: int, causal: bool) -> dict[str, Any]:
    """Return CONFIG and the compiler options of a direction ("forward", "backward") for numbers of `size` bytes."""
    table = family("sm_86")["flash_attn_1"]
    block_m, block_n, num_warps = table.first(direction=direction, itemsize=size, head_dim=head_dim)
    config = Fa1Config(block_m, block_n, max(16, triton.next_power_of_2(head_dim)), head_dim, causal)
    return {"CONFIG": Constants(config), "num_warps": num_warps, "num_stages": 1}


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute attention, differentiable once. Raises UnsupportedCase for tensors that the kernels cannot take."""
    check_inputs("flash_attn_1", q, k, v, _DTYPES, _MAX_HEAD_DIM)
    if window_size:
        raise UnsupportedCase("flash_attn_1 does not support sliding windows.")
    if q.device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise UnsupportedCase("flash_attn_1 runs on the CPU only in Triton's interpreter: set TRITON_INTERPRET=1.")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return _FlashAttention1.apply(q, k, v, causal, scale)


class _FlashAttention1(torch.autograd.Function):
    """Saves q, k, v, out and the sums and maxima of rows."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
    ) -> torch.Tensor:
        q, k, v = map(_with_dense_rows, (q, k, v))
        out = torch.zeros_like(q, dtype=torch.float32)
        total = torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)
        highest = torch.full_like(total, float("-inf"))
        with device_guard(q.device):
            if q.numel() and k.numel():
                forward_kernel[(q.shape[0] * q.shape[1],)](
                    *map(_heads, (q, k, v, out)),
                    total,
                    highest,
                    _sizes(q, k, scale),
                    **options_of("forward", q.element_size(), q.shape[3], causal),
                )
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, total, highest)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, total, highest = ctx.saved_tensors
        dq = torch.zeros_like(q, dtype=torch.float32)
        tensors = (q, k, v, out, _with_dense_rows(dout), dq, torch.zeros_like(k), torch.zeros_like(v))
        with device_guard(q.device):
            if q.numel() and k.numel():
                backward_kernel[(k.shape[0] * k.shape[1],)](
                    *map(_heads, tensors),
                    total,
                    highest,
                    _sizes(q, k, ctx.scale),
                    **options_of("backward", q.element_size(), q.shape[3], ctx.causal),
                )
        return dq.to(q.dtype), *tensors[6:], None, None


def _with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _heads(x: torch.Tensor) -> Heads:
    return Heads(x, *x.stride()[:3])


def _sizes(q: torch.Tensor, k: torch.Tensor, scale: float) -> Fa1Sizes:
    return Fa1Sizes(q.shape[1], k.shape[1], q.shape[2], k.shape[2], scale)
