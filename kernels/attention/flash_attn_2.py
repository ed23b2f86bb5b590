"""FlashAttention-2 (the package flash-attn, BSD licence, Dao-AILab/flash-attention), where it is installed.

Written for the signatures of version 2.8 and tested with mocks that have them, never with the package itself.
"""

from __future__ import annotations

from typing import Any

from .. import packages

PACKAGE = packages.Package("FlashAttention-2", "pip install flash-attn --no-build-isolation", "flash-attn")


def call(*tensors: Any, causal: bool, window_size: int, softmax_scale: float | None) -> Any:
    """Call the package as a `kernels.packages.Call`."""
    from flash_attn import flash_attn_func

    return flash_attn_func(*tensors, softmax_scale=softmax_scale, **packages.masked(causal, window_size))


IMPLEMENTATIONS = packages.op(
    PACKAGE,
    "flash_attn_2",
    "FlashAttention-2, in CUDA C++, where it is installed",
    call,
    min_compute_capability=(8, 0),
    memory={"growth": "linear"},
)
