"""Attention layers as models have them: projections around an attention, which any implementation can be.

Five kinds: multi-head attention with one projection for queries, keys and values (`FusedQkvLayer`), with one each, and
grouped-query and multi-query attention, which have fewer key heads (`SeparateQkvLayer`); multi-head latent attention,
whose keys and values come from a narrow latent (`LatentLayer`). hidden is num_heads x head_dim. No rotary embedding, no
dropout, no normalisation; a bias only where it is asked for.

Projections give (batch, seqlen, heads, head_dim), and attention gets views of that with the heads before the tokens:
nothing is copied, and key heads are never repeated. An implementation that returns out in the layout of q, as ours do,
costs no copy before the last projection either. One whose dq, dk and dv lie side by side as q, k and v do, as those of
ours do, costs no copy after its backward.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from .registry import Attention


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent_dim: int = 0  # width of the latent that keys and values come from; 0: none
    bias: bool = False  # of every projection
    causal: bool = False

    @property
    def hidden(self) -> int:
        """Return the width of what goes in and comes out."""
        return self.num_heads * self.head_dim


class AttentionLayer(nn.Module, ABC):
    """A layer without its projections to queries, keys and values, which each kind has its own way of."""

    def __init__(self, shape: LayerShape, attention: Attention, **like: torch.device | torch.dtype) -> None:
        super().__init__()
        self.shape, self.attention = shape, attention
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=shape.bias, **like)

    def around(self, attention: Attention) -> Self:
        """Return a layer with the weights of this one, shared, around another attention."""
        other = copy.copy(self)
        other.attention = attention
        return other

    @abstractmethod
    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q (batch, num_heads, seqlen, head_dim), k and v (batch, num_kv_heads, seqlen, head_dim)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what x: (batch, seqlen, hidden) becomes, in its shape."""
        out = self.attention(*self.project(x), causal=self.shape.causal)
        return self.out(out.transpose(1, 2).flatten(2))


class FusedQkvLayer(AttentionLayer):
    """Multi-head attention with one projection to queries, keys and values, in this order."""

    def __init__(self, shape: LayerShape, attention: Attention, **like: torch.device | torch.dtype) -> None:
        super().__init__(shape, attention, **like)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=shape.bias, **like)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v, views of one tensor."""
        return _heads(self.qkv(x), self.shape.head_dim, 3)


class SeparateQkvLayer(AttentionLayer):
    """Multi-head attention with a projection each; grouped-query or multi-query where key heads are fewer."""

    def __init__(self, shape: LayerShape, attention: Attention, **like: torch.device | torch.dtype) -> None:
        super().__init__(shape, attention, **like)
        narrow = shape.num_kv_heads * shape.head_dim
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=shape.bias, **like)
        self.k = nn.Linear(shape.hidden, narrow, bias=shape.bias, **like)
        self.v = nn.Linear(shape.hidden, narrow, bias=shape.bias, **like)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v of a projection each."""
        (q,), (k,), (v,) = (_heads(project(x), self.shape.head_dim) for project in (self.q, self.k, self.v))
        return q, k, v


class LatentLayer(AttentionLayer):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) without rotary parts.

    `down` makes a latent of width latent_dim, `up` the keys and values of all heads from it, in this order.
    """

    def __init__(self, shape: LayerShape, attention: Attention, **like: torch.device | torch.dtype) -> None:
        super().__init__(shape, attention, **like)
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=shape.bias, **like)
        self.down = nn.Linear(shape.hidden, shape.latent_dim, bias=shape.bias, **like)
        self.up = nn.Linear(shape.latent_dim, 2 * shape.hidden, bias=shape.bias, **like)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, and k and v made from the latent."""
        (q,) = _heads(self.q(x), self.shape.head_dim)
        return q, *_heads(self.up(self.down(x)), self.shape.head_dim, 2)


@dataclass(frozen=True)
class LayerKind:
    """How a subject of level layer is built."""

    module: type[AttentionLayer]
    bias: bool = False


KINDS = {
    "mha_fused": LayerKind(FusedQkvLayer),
    "mha": LayerKind(SeparateQkvLayer),
    "gqa": LayerKind(SeparateQkvLayer),
    "mqa": LayerKind(SeparateQkvLayer),
    "mla": LayerKind(LatentLayer),
    "mha_fused_bias": LayerKind(FusedQkvLayer, bias=True),  # FlashTile's layers
    "gqa_bias": LayerKind(SeparateQkvLayer, bias=True),
}


def build(
    kind: str, shape: LayerShape, attention: Attention, *, device: torch.device | str, dtype: torch.dtype
) -> AttentionLayer:
    """Return a layer of a kind with random weights.

    Raises KeyError naming the kinds there are. Weights are PyTorch's own until somebody fills them.
    """
    if kind not in KINDS:
        raise KeyError(f"Unknown layer {kind!r}. Available: {', '.join(KINDS)}.")
    make = partial(KINDS[kind].module, attention=attention, device=device, dtype=dtype)
    return make(LayerShape(**{**vars(shape), "bias": KINDS[kind].bias}))


def _heads(x: torch.Tensor, head_dim: int, parts: int = 1) -> tuple[torch.Tensor, ...]:
    """Cut (batch, seqlen, parts x heads x head_dim) into its parts, as views (batch, heads, seqlen, head_dim)."""
    return _views(x, head_dim, 1) if parts == 1 else _Parts.apply(x, head_dim, parts)


def _views(x: torch.Tensor, head_dim: int, parts: int) -> tuple[torch.Tensor, ...]:
    return tuple(part.transpose(1, 2) for part in x.unflatten(2, (parts, -1, head_dim)).unbind(2))


class _Parts(torch.autograd.Function):
    """Views of the parts of a tensor; the backward copies their gradients only where they are no such views."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, head_dim: int, parts: int) -> tuple[torch.Tensor, ...]:
        return _views(x, head_dim, parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        whole = _whole(gradients)
        if whole is None:
            whole = torch.stack([gradient.transpose(1, 2) for gradient in gradients], dim=2)
        return whole.flatten(2), None, None


def _whole(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the (batch, seqlen, parts, heads, head_dim) tensor whose parts these are; None if they are of none."""
    first = parts[0]
    batch, heads, seqlen, head_dim = first.shape
    row, width = len(parts) * heads * head_dim, heads * head_dim
    strides = (seqlen * row, head_dim, row, 1)
    for i, part in enumerate(parts):
        if part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or part.stride() != strides:
            return None
        if part.storage_offset() != first.storage_offset() + i * width:
            return None
    return first.as_strided((batch, seqlen, len(parts), heads, head_dim), (seqlen * row, row, width, head_dim, 1))
