"""Attention kernels. `kernels.attention(q, k, v)` is the front door; the package of that name holds what it picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels.attention  # noqa: F401 - loaded first, or its later import would take the name from the function below

if TYPE_CHECKING:
    import torch


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Attention by the best of our kernels for these tensors; see `kernels.dispatch.attention`."""
    from kernels import dispatch  # with torch, which importing this package must not bring

    return dispatch.attention(q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale)
