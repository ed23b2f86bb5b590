"""FlashAttention-2 (the package flash-attn, BSD licence, Dao-AILab/flash-attention), where it is installed.

Written for the signatures of version 2.8 and tested with mocks that have them, never with the package itself.
"""

from __future__ import annotations

from typing import Any

from .. import packages
from ..features import SequenceBounds, Window


def call(*tensors: Any, causal: bool, window_size: Window, **options: Any) -> Any:
    """Call the package as a `kernels.packages.Call`."""
    from flash_attn import flash_attn_func

    return flash_attn_func(*tensors, **options, **packages.masked(causal, window_size))


def packed(*tensors: Any, bounds: SequenceBounds, causal: bool, window_size: Window, **options: Any) -> Any:
    """Call the package with packed sequences, see `kernels.packages.op`."""
    from flash_attn import flash_attn_varlen_func

    masks = packages.masked(causal, window_size)
    return flash_attn_varlen_func(*tensors, **packages.flash_lengths(bounds), **options, **masks)


IMPLEMENTATIONS = packages.op("flash_attn_2", call, packed=packed)
