"""FlashAttention-3 (the folder hopper of Dao-AILab/flash-attention, BSD licence), where it is installed.

It wants (batch, seqlen, heads, head_dim); our tensors are handed over as transposed views, so that every
implementation reads the same memory. Written to the signature of its release 3.0.0b1, which may return the logsumexp
beside the output, and tested against a stand-in that has it; it was never run against the package itself.
"""

from __future__ import annotations

import importlib.util

import torch

from kernels.attention.flash_attn_2 import window
from kernels.registry import AttentionCase, Device, Implementation, UnsupportedCase

MODULE = "flash_attn_interface"
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
    """Attention by FlashAttention-3; see `kernels.registry.Attention`. Raises UnsupportedCase where it is missing."""
    if missing := _unavailable():
        raise UnsupportedCase(missing)
    from flash_attn_interface import flash_attn_func

    transposed = (x.transpose(1, 2) for x in (q, k, v))
    limits = window(causal, window_size)
    out = flash_attn_func(*transposed, softmax_scale=softmax_scale, causal=causal, window_size=limits)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def _unavailable() -> str | None:
    if importlib.util.find_spec(MODULE) is None:
        return "FlashAttention-3 is not installed: build the folder hopper of github.com/Dao-AILab/flash-attention."
    return None


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if (case.head_dim or ALIGNMENT) % ALIGNMENT:
        return f"flash_attn_3 needs a head_dim divisible by {ALIGNMENT}, not {case.head_dim}."
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="flash_attn_3",
        description="FlashAttention-3, in CUDA C++ for Hopper, where it is installed",
        attention=attention,
        dtypes=("bfloat16", "float16"),
        devices=("cuda",),
        max_head_dim=256,
        min_compute_capability=(9, 0),
        max_compute_capability=(9, 0),
        unavailable=_unavailable(),
        refuses=_refuses,
        optional=True,
    ),
)
