"""FlashAttention-2 (the package flash-attn, BSD licence, Dao-AILab/flash-attention), where it is installed.

It wants (batch, seqlen, heads, head_dim); our tensors are handed over as transposed views, so that every
implementation reads the same memory. Written to the signature of version 2.8 and tested against a stand-in that has
it; it was never run against the package itself.
"""

from __future__ import annotations

import importlib.metadata

import torch

from kernels.registry import Implementation, UnsupportedCase

PACKAGE = "flash-attn"


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Attention by FlashAttention-2; see `kernels.registry.Attention`. Raises UnsupportedCase where it is missing."""
    if missing := _unavailable():
        raise UnsupportedCase(missing)
    from flash_attn import flash_attn_func

    transposed = (x.transpose(1, 2) for x in (q, k, v))
    limits = window(causal, window_size)
    return flash_attn_func(*transposed, softmax_scale=softmax_scale, causal=causal, window_size=limits).transpose(1, 2)


def window(causal: bool, window_size: int) -> tuple[int, int]:
    """How many keys before and after its own position a query sees, -1 for all."""
    if not window_size:
        return -1, -1
    return window_size - 1, 0 if causal else window_size - 1


def _unavailable() -> str | None:
    try:  # not the module: flash-attn-4 has one of that name
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return f"FlashAttention-2 is not installed: pip install {PACKAGE} --no-build-isolation."
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="flash_attn_2",
        description="FlashAttention-2, in CUDA C++, where it is installed",
        attention=attention,
        dtypes=("bfloat16", "float16"),
        devices=("cuda",),
        max_head_dim=256,
        min_compute_capability=(8, 0),
        unavailable=_unavailable(),
        optional=True,
    ),
)
