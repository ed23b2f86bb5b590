"""FlashAttention-3 (the folder hopper of Dao-AILab/flash-attention, BSD licence), where it is installed.

Written for the signatures of release 3.0.0b1, which may return the logsumexp after the output, and tested with
mocks that have them, never with the package itself.
"""

from __future__ import annotations

from typing import Any

from .. import packages
from ..features import SequenceBounds, Window

_INSTALL = "build the folder hopper of github.com/Dao-AILab/flash-attention"
PACKAGE = packages.Package("FlashAttention-3", _INSTALL, module="flash_attn_interface")
KEYWORDS = {"softcap": "softcap"}


def call(*tensors: Any, causal: bool, window_size: Window, **options: Any) -> Any:
    """Call the package as a `kernels.packages.Call`."""
    from flash_attn_interface import flash_attn_func

    return flash_attn_func(*tensors, **options, **packages.masked(causal, window_size))


def packed(*tensors: Any, bounds: SequenceBounds, causal: bool, window_size: Window, **options: Any) -> Any:
    """Call the package with packed sequences, see `kernels.packages.op`."""
    from flash_attn_interface import flash_attn_varlen_func

    masks = packages.masked(causal, window_size)
    return flash_attn_varlen_func(*tensors, **packages.flash_lengths(bounds), **options, **masks)


IMPLEMENTATIONS = packages.op(
    PACKAGE,
    "flash_attn_3",
    "FlashAttention-3, in CUDA C++ for Hopper, where it is installed",
    call,
    features=("head_dim_v", "two_windows"),
    keywords=KEYWORDS,
    packed=packed,
    min_compute_capability=(9, 0),
    max_compute_capability=(9, 0),
    refuses=lambda case, device: packages.reason("flash_attn_3", packages.misaligned(case)),
)
