"""FlashAttention-4 (the package flash-attn-4, written in the CuTe DSL), where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from .. import packages
from ..features import SequenceBounds, Window
from ..registry import AttentionCase, Device


def call(*tensors: Any, causal: bool, window_size: Window, **options: Any) -> Any:
    """Call the package as a `kernels.packages.Call`."""
    return _function("flash_attn_func")(*tensors, **options, **packages.masked(causal, window_size, every=None))


def packed(*tensors: Any, bounds: SequenceBounds, **options: Any) -> Any:
    """Call the package with packed sequences, see `kernels.packages.op`."""
    options |= packages.flash_lengths(bounds)
    options |= packages.masked(options.pop("causal"), options.pop("window_size"), every=None)
    return _function("flash_attn_varlen_func")(*tensors, **options)


@cache
def _function(name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module("flash_attn.cute"), name)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    only_hopper = 128 < (case.head_dim or 0) != 256 and device.compute_capability not in (None, (9, 0))
    limit = f"takes head_dim {case.head_dim} only on compute capability 9.0; other devices take up to 128, or 256"
    return packages.reason("flash_attn_4", packages.misaligned(case), (only_hopper, limit))


IMPLEMENTATIONS = packages.op("flash_attn_4", call, packed=packed, refuses=_refuses)
