"""Launches of the kernels of FlashAttention-1, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
from torch.autograd.function import once_differentiable

from ...constants import Constants
from ...plans import check_inputs, device_guard
from ...registry import UnsupportedCase, refuse_cpu
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
    if q.device.type != "cuda":
        refuse_cpu("flash_attn_1", q)
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
        rows = total, torch.full_like(total, float("-inf"))
        _launch(forward_kernel, (q, k, v, out), rows, causal, scale)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, *rows)
        ctx.masks = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, *rows = ctx.saved_tensors
        gradients = torch.zeros_like(q, dtype=torch.float32), torch.zeros_like(k), torch.zeros_like(v)
        _launch(backward_kernel, (q, k, v, out, _with_dense_rows(dout), *gradients), rows, *ctx.masks)
        return gradients[0].to(q.dtype), *gradients[1:], None, None


def _launch(
    kernel: Any, tensors: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], causal: bool, scale: float
) -> None:
    """Launch a kernel for q, k, v and the other tensors of its direction; `rows` are their sums and maxima."""
    q, k = tensors[:2]
    direction, heads = ("forward", q.shape[1]) if kernel is forward_kernel else ("backward", k.shape[1])
    sizes = Fa1Sizes(q.shape[1], k.shape[1], q.shape[2], k.shape[2], scale)
    options = options_of(direction, q.element_size(), q.shape[3], causal)
    with device_guard(q.device):
        if q.numel() and k.numel():
            kernel[(q.shape[0] * heads,)](*(Heads(x, *x.stride()[:3]) for x in tensors), *rows, sizes, **options)


def _with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
