"""FlashAttention-2 (the package flash-attn, BSD licence, Dao-AILab/flash-attention), where it is installed.

Written to the signature of version 2.8 and tested against a stand-in that has it; it was never run against the package
itself.
"""

from __future__ import annotations

import torch

from .. import attention_packages


def call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window_size: int, softmax_scale: float | None
) -> torch.Tensor:
    """Call the package as a `kernels.attention_packages.Call`."""
    from flash_attn import flash_attn_func

    limits = attention_packages.window(causal, window_size)
    return flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=limits)


IMPLEMENTATIONS = (
    attention_packages.implementation(
        "flash_attn_2",
        "FlashAttention-2, in CUDA C++, where it is installed",
        call,
        attention_packages.missing(
            "flash-attn", "FlashAttention-2 is not installed: pip install flash-attn --no-build-isolation."
        ),
        min_compute_capability=(8, 0),
        memory={"growth": "linear"},
    ),
)
