"""FlashAttention-4 (the package flash-attn-4, written in the CuTe DSL), where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .. import attention_packages
from ..registry import AttentionCase, Device


def call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window_size: int, softmax_scale: float | None
) -> torch.Tensor | tuple[Any, ...]:
    """Call the package as a `kernels.attention_packages.Call`."""
    limits = attention_packages.window(causal, window_size, every=None)
    only_causal = causal and not window_size
    return _function()(q, k, v, softmax_scale=softmax_scale, causal=only_causal, window_size=limits)


@cache
def _function() -> Callable[..., Any]:
    from flash_attn.cute import flash_attn_func

    return flash_attn_func


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if misaligned := attention_packages.misaligned("flash_attn_4", case):
        return misaligned
    head_dim = case.head_dim or 0
    if head_dim > 128 and device.compute_capability not in (None, (9, 0)) and head_dim != 256:
        return f"flash_attn_4 takes head_dim {head_dim} on compute capability 9.0 alone; others up to 128, or 256."
    return None


IMPLEMENTATIONS = (
    attention_packages.implementation(
        "flash_attn_4",
        "FlashAttention-4, in the CuTe DSL, where it is installed",
        call,
        attention_packages.missing(
            "flash-attn-4", "FlashAttention-4 is not installed: pip install --pre flash-attn-4."
        ),
        features=("head_dim_v",),
        min_compute_capability=(8, 0),
        memory={
            "growth": "linear",
            "fwd": {"numbers": 1},
            "fwd_bwd": {"numbers": 3, "queries_float32": 1, "grouped_float32": 1},
        },
        colour="#c51b8a",
        compiled="first_call",
        refuses=_refuses,
    ),
)
