"""FlashAttention-3 (the folder hopper of Dao-AILab/flash-attention, BSD licence), where it is installed.

Written to the signature of its release 3.0.0b1, which may return the logsumexp beside the output, and tested against a
stand-in that has it; it was never run against the package itself.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from .. import attention_packages
from ..registry import AttentionCase, Device

MODULE = "flash_attn_interface"


def call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window_size: int, softmax_scale: float | None
) -> torch.Tensor | tuple[Any, ...]:
    """Call the package as a `kernels.attention_packages.Call`."""
    from flash_attn_interface import flash_attn_func

    limits = attention_packages.window(causal, window_size)
    return flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=limits)


def _unavailable() -> str | None:
    if importlib.util.find_spec(MODULE) is None:
        return "FlashAttention-3 is not installed: build the folder hopper of github.com/Dao-AILab/flash-attention."
    return None


def _refuses(case: AttentionCase, device: Device) -> str | None:
    return attention_packages.misaligned("flash_attn_3", case)


IMPLEMENTATIONS = (
    attention_packages.implementation(
        "flash_attn_3",
        "FlashAttention-3, in CUDA C++ for Hopper, where it is installed",
        call,
        _unavailable(),
        features=("head_dim_v",),
        min_compute_capability=(9, 0),
        max_compute_capability=(9, 0),
        refuses=_refuses,
    ),
)
