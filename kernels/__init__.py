"""Attention kernels: tensors in, tensors out. `attention(q, k, v)` chooses the kernel for the tensors and the device.

`decode` and `mla_decode` attend with few query tokens to a cache. The folder is named `kernels` in the checkout and
installs as `attnbench`. Importing it does not import torch.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import attention as _attention  # noqa: F401  imported first: a later import would replace the function below
from . import decode as _decode  # noqa: F401
from . import neighbor

if TYPE_CHECKING:
    import torch

VERSION = "0.1.0"
_SUBMODULES = ("flash_attn", "routes", "transformers")  # imported when first used, because they import torch
_FUNCTIONS = {  # of submodules, which document them
    "block_mask": "features", "explain": "explaining", "sdpa_replacement": "drop_in", "batch_invariant": "invariant",
    "recording": "recorder", "attention_varlen": "feature_calls", "merge": "lse",
}  # fmt: skip
_loaded: ModuleType | None = None
__path__ += neighbor.folders(__name__, __path__)


def __getattr__(name: str) -> Any:
    """Import a submodule on first use, or return a name of Hugging Face's package `kernels` where it is installed."""
    if name in _FUNCTIONS:
        return globals().setdefault(name, getattr(importlib.import_module(f".{_FUNCTIONS[name]}", __name__), name))
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if len(__path__) > 1:
        return neighbor.attribute(__name__, __path__[-1], name)
    if name == "__version__":
        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int | tuple[int, int] = 0,
    softmax_scale: float | None = None,
    **features: Any,
) -> Any:
    """Compute attention with the best kernel for these tensors; `dispatch.attention` documents the arguments."""
    door = (_loaded or _dispatch()).attention
    if features:  # otherwise without a dict that takes time to merge
        return door(q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale, **features)
    return door(q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale)


def decode(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **options: Any) -> Any:
    """Attend with 1 to 16 query tokens to a cache of keys and values; see `decode.triton_decode.decode`."""
    from .decode import triton_decode

    return triton_decode.decode(q, k_cache, v_cache, **options)


def mla_decode(q: torch.Tensor, kv_cache: torch.Tensor, **options: Any) -> Any:
    """Attend with absorbed query tokens to a cache of latents; see `decode.triton_mla.mla_decode`."""
    from .decode import triton_mla

    return triton_mla.mla_decode(q, kv_cache, **options)


def _dispatch() -> ModuleType:
    """Import `dispatch` at the first call, because it imports torch.

    A global holds the module because torch.compile warns about cached functions.
    """
    global _loaded
    from . import dispatch

    _loaded = dispatch
    return dispatch
