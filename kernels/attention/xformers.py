"""xFormers' memory_efficient_attention (BSD licence, facebookresearch/xformers), where it is installed.

It takes the mask as an object and chooses a kernel: FlashAttention for 16 bits, CUTLASS for float32. Grouped heads are
a fifth dimension, which its backward does not support: with gradients, the heads of keys and values are repeated as
part of the call. Written for the signatures of version 0.0.35 and tested with mocks that have them. Only its masks
were run: its wheel is built for PyTorch 2.10, and has no kernels for PyTorch 2.11 on an H200.
"""

from typing import Any

import torch

from .. import packages
from ..plans import wants_gradients
from ..registry import AttentionCase, Device


def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None, **masks: Any) -> torch.Tensor:
    """Call the package as a `kernels.packages.Call`."""
    from xformers.ops import memory_efficient_attention

    shape, group = q.shape, q.shape[2] // k.shape[2]
    if group > 1 and wants_gradients(q, k, v):
        k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    elif group > 1:
        q = q.unflatten(2, (-1, group))
        k, v = (x.unsqueeze(3).expand(-1, -1, -1, group, -1) for x in (k, v))
    options = {"attn_bias": mask(**masks), "scale": softmax_scale}
    return packages.supported(memory_efficient_attention, q, k, v, **options).reshape(shape)


def mask(causal: bool, window_size: int) -> Any:
    """Return the mask as an object of xFormers, or None; the last query is aligned with the last key."""
    from xformers.ops.fmha import attn_bias

    if not causal:
        sides = window_size - 1, window_size - 1
        return attn_bias.LocalAttentionFromBottomRightMask(*sides) if window_size else None
    below = attn_bias.LowerTriangularFromBottomRightMask()
    return below.make_local_attention(window_size) if window_size else below


def _refuses(case: AttentionCase, device: Device) -> str | None:
    in_float32, newer = case.dtype == "float32", (device.compute_capability or (9, 0)) > (9, 0)
    both_sides = in_float32 and case.window_size and not case.causal
    return packages.reason(
        "xformers",
        (in_float32 and newer, "computes float32 up to compute capability 9.0; use bfloat16 or float16"),
        (both_sides, "takes a window on both sides of a query only in bfloat16 and float16, not in float32"),
    )


IMPLEMENTATIONS = packages.op("xformers", call, refuses=_refuses)
