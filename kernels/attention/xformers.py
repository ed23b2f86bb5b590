"""xFormers' memory_efficient_attention (BSD licence, facebookresearch/xformers), where it is installed.

It takes a mask as an object, and picks a kernel itself: FlashAttention for 16 bits, CUTLASS for float32. Fewer key
heads than query heads are a fifth dimension there, which its backward does not take: with gradients the heads of keys
and values are repeated first, and that is part of the call.

Written to the signature of version 0.0.35 and tested against a stand-in that has it. Of the package itself the masks
were checked, on a CPU; its kernels were never run: the wheel of that version, which is built for PyTorch 2.10, was
imported on an H200 with PyTorch 2.11 and offered none.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import attention_packages
from ..registry import AttentionCase, Device, UnsupportedCase


def call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window_size: int, softmax_scale: float | None
) -> torch.Tensor:
    """Call the package as a `kernels.attention_packages.Call`."""
    from xformers.ops import memory_efficient_attention

    shape, group = q.shape, q.shape[2] // k.shape[2]
    if group > 1 and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    elif group > 1:
        q = q.unflatten(2, (-1, group))
        k, v = (x.unsqueeze(3).expand(-1, -1, -1, group, -1) for x in (k, v))
    try:
        out = memory_efficient_attention(q, k, v, attn_bias=mask(causal, window_size), scale=softmax_scale)
    except NotImplementedError as error:  # no kernel, for one when the wheel was built for another PyTorch
        raise UnsupportedCase(" ".join(str(error).split())) from error
    return out.reshape(shape)


def mask(causal: bool, window_size: int) -> Any:
    """Return which keys a query sees, as xFormers says it; the last query is aligned with the last key."""
    from xformers.ops.fmha import attn_bias

    if not causal and not window_size:
        return None
    if not causal:
        return attn_bias.LocalAttentionFromBottomRightMask(window_size - 1, window_size - 1)
    below = attn_bias.LowerTriangularFromBottomRightMask()
    return below.make_local_attention(window_size) if window_size else below


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if misaligned := attention_packages.misaligned("xformers", case):
        return misaligned
    if case.dtype != "float32":
        return None
    if (device.compute_capability or (9, 0)) > (9, 0):
        return "xformers computes float32 up to compute capability 9.0; use bfloat16 or float16."
    if case.window_size and not case.causal:
        return "xformers takes a window on both sides of a query in bfloat16 and float16 alone, not in float32."
    return None


IMPLEMENTATIONS = (
    attention_packages.implementation(
        "xformers",
        "xFormers' memory-efficient attention, where it is installed",
        call,
        attention_packages.missing("xformers", "xFormers is not installed: pip install xformers."),
        dtypes=("bfloat16", "float16", "float32"),
        min_compute_capability=(8, 0),
        refuses=_refuses,
    ),
)
