"""xFormers' memory_efficient_attention (BSD licence, facebookresearch/xformers), where it is installed.

It takes the mask as an object and chooses a kernel: FlashAttention for 16 bits, CUTLASS for float32. Grouped heads are
a fifth dimension, which its backward does not support: with gradients, the heads of keys and values are repeated as
part of the call. Written for the signatures of version 0.0.35 and tested with mocks that have them. Only its masks
were run: its wheel is built for PyTorch 2.10, and has no kernels for PyTorch 2.11 on an H200.
"""

from functools import lru_cache
from typing import Any

import torch

from .. import packages
from ..features import SequenceBounds
from ..plans import wants_gradients
from ..registry import AttentionCase, Device


def call(
    *tensors: torch.Tensor, softmax_scale: float | None, bounds: SequenceBounds | None = None, **masks: Any
) -> torch.Tensor:
    """Call the package as a `kernels.packages.Call`; with bounds, the rows of a batch of 1 are packed sequences."""
    from xformers.ops import memory_efficient_attention

    q, k, v = tensors
    shape, group = q.shape, q.shape[2] // k.shape[2]
    if group > 1 and wants_gradients(q, k, v):
        k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    elif group > 1:
        q = q.unflatten(2, (-1, group))
        k, v = (x.unsqueeze(3).expand(-1, -1, -1, group, -1) for x in (k, v))
    attn_bias = mask(**masks) if bounds is None else _of_sequences(bounds.starts_q, bounds.ends_q, masks["causal"])
    options = {"attn_bias": attn_bias, "scale": softmax_scale}
    return packages.supported(memory_efficient_attention, q, k, v, **options).reshape(shape)


def packed(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Call the package with packed sequences of equal lengths of queries and keys, see `kernels.packages.op`."""
    return call(*(x[None] for x in tensors), **options)[0]


@lru_cache(maxsize=8)
def _of_sequences(starts: torch.Tensor, ends: torch.Tensor, causal: bool) -> Any:
    """Return the mask of packed sequences, kept for the bounds of one call, because it needs lengths on the host."""
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    found = BlockDiagonalMask.from_seqlens((ends - starts).tolist(), device=starts.device)
    return found.make_causal() if causal else found


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


IMPLEMENTATIONS = packages.op("xformers", call, packed=packed, refuses=_refuses)
