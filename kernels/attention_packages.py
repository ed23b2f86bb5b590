"""What other projects' attention packages have in common: their layout of tensors, and that they may be missing.

They want (batch, seqlen, heads, head_dim); our tensors are handed over as transposed views, so that every
implementation reads the same memory.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any, Protocol

import torch

from .registry import Attention, AttentionCase, Implementation, UnsupportedCase

ALIGNMENT = 8  # of head_dim: 16 bytes


class Call(Protocol):
    """A package's function on q, k and v of (batch, seqlen, heads, head_dim); gives the output, or it and more."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        window_size: int,
        softmax_scale: float | None,
    ) -> torch.Tensor | tuple[Any, ...]: ...


def implementation(name: str, description: str, call: Call, unavailable: str | None, **rules: Any) -> Implementation:
    """Declare a peer by its call; `unavailable` is why it cannot be had here, or None; `rules` are Implementation's."""
    usual = {"dtypes": ("bfloat16", "float16"), "devices": ("cuda",), "max_head_dim": 256, "family": "peer"}
    attention = attention_by(call, unavailable)
    return Implementation(name, description, attention, unavailable=unavailable, **{**usual, **rules})


def attention_by(call: Call, unavailable: str | None) -> Attention:
    """Make a `kernels.registry.Attention` of a call; it raises UnsupportedCase where the peer is missing."""

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: int = 0,
        softmax_scale: float | None = None,
    ) -> torch.Tensor:
        if unavailable:
            raise UnsupportedCase(unavailable)
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out = call(*turned, causal=causal, window_size=window_size, softmax_scale=softmax_scale)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return attention


def window(causal: bool, window_size: int, every: int | None = -1) -> tuple[int | None, int | None]:
    """Return how many keys before and after its own position a query sees; `every` is the package's word for all."""
    if not window_size:
        return every, every
    return window_size - 1, 0 if causal else window_size - 1


def missing(package: str, sentence: str) -> str | None:
    """Return the sentence if a package is not installed. Asks by its name, which several packages' modules share."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return sentence
    return None


def misaligned(name: str, case: AttentionCase) -> str | None:
    """Return why a peer cannot take the head_dim of a case, or None if it can."""
    if (case.head_dim or ALIGNMENT) % ALIGNMENT:
        return f"{name} needs a head_dim divisible by {ALIGNMENT}, not {case.head_dim}."
    return None
