"""Attention kernels. `kernels.attention(q, k, v)` is the front door; the package of that name holds what it picks.

`kernels.decode` and `kernels.mla_decode` attend with few query tokens to a cache.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import attention as _attention  # noqa: F401  imported first: a later import would replace the function below
from . import decode as _decode  # noqa: F401

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from .drop_in import SdpaCalls

_loaded: ModuleType | None = None


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
    **features: Any,
) -> torch.Tensor:
    """Compute attention by the best of our kernels for these tensors; see `kernels.dispatch.attention`."""
    return _dispatch().attention(
        q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale, **features
    )


def attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *lengths: Any, **options: Any) -> torch.Tensor:
    """Compute attention of packed sequences; see `kernels.feature_calls.attention_varlen`."""
    from . import feature_calls

    return feature_calls.attention_varlen(q, k, v, *lengths, **options)


def sdpa_replacement(implementation: str | None = None) -> AbstractContextManager[SdpaCalls]:
    """Serve calls of PyTorch's scaled_dot_product_attention while open; see `kernels.drop_in.sdpa_replacement`."""
    from . import drop_in

    return drop_in.sdpa_replacement(implementation)


def decode(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **options: Any) -> Any:
    """Attend with 1 to 16 query tokens to a cache of keys and values; see `kernels.decode.triton_decode.decode`."""
    from .decode import triton_decode

    return triton_decode.decode(q, k_cache, v_cache, **options)


def mla_decode(q: torch.Tensor, kv_cache: torch.Tensor, **options: Any) -> Any:
    """Attend with absorbed query tokens to a cache of latents; see `kernels.decode.triton_mla.mla_decode`."""
    from .decode import triton_mla

    return triton_mla.mla_decode(q, kv_cache, **options)


def _dispatch() -> ModuleType:
    """Return `kernels.dispatch`, imported at the first call: it brings torch, which importing this package must not.

    Kept in a global: of a cached function torch.compile warns.
    """
    global _loaded
    if _loaded is None:
        from . import dispatch

        _loaded = dispatch
    return _loaded
