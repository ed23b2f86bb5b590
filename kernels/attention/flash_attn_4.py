"""FlashAttention-4 (the package flash-attn-4, written in the CuTe DSL), where it is installed.

It wants (batch, seqlen, heads, head_dim); our tensors are handed over as transposed views, so that every
implementation reads the same memory.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache

import torch

from kernels.registry import AttentionCase, Device, Implementation, UnsupportedCase

PACKAGE = "flash-attn-4"
ALIGNMENT = 8  # of head_dim: 16 bytes


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Attention by FlashAttention-4; see `kernels.registry.Attention`. Raises UnsupportedCase where it is missing."""
    if missing := _unavailable():
        raise UnsupportedCase(missing)
    before, after = window(causal, window_size)
    out = _function()(
        *(x.transpose(1, 2) for x in (q, k, v)),
        softmax_scale=softmax_scale,
        causal=causal and not window_size,
        window_size=(before, after),
    )
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def window(causal: bool, window_size: int) -> tuple[int | None, int | None]:
    """How many keys before and after its own position a query sees, None for all."""
    if not window_size:
        return None, None
    return window_size - 1, 0 if causal else window_size - 1


@cache
def _function():
    from flash_attn.cute import flash_attn_func

    return flash_attn_func


def _unavailable() -> str | None:
    try:
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return f"FlashAttention-4 is not installed: pip install --pre {PACKAGE}."
    return None


def _refuses(case: AttentionCase, device: Device) -> str | None:
    head_dim = case.head_dim or ALIGNMENT
    if head_dim % ALIGNMENT:
        return f"flash_attn_4 needs a head_dim divisible by {ALIGNMENT}, not {head_dim}."
    if head_dim > 128 and device.compute_capability not in (None, (9, 0)) and head_dim != 256:
        return f"flash_attn_4 takes head_dim {head_dim} on compute capability 9.0 alone; others up to 128, or 256."
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="flash_attn_4",
        description="FlashAttention-4, in the CuTe DSL, where it is installed",
        attention=attention,
        dtypes=("bfloat16", "float16"),
        devices=("cuda",),
        max_head_dim=256,
        min_compute_capability=(8, 0),
        unavailable=_unavailable(),
        refuses=_refuses,
        optional=True,
    ),
)
