"""Attention layers as models have them: projections around an attention, which can be any implementation.

KINDS declares them: multi-head attention with one projection for queries, keys and values, or with one projection each;
grouped-query and multi-query attention, with fewer key heads; and multi-head latent attention (DeepSeek-V2, arXiv
2405.04434, section 2.1), without rotary parts, whose keys and values come from a narrow latent. The hidden size is
num_heads x head_dim. There is no rotary embedding, dropout or normalization.

Projections return (batch, seqlen, heads, head_dim), and attention gets views with the heads before the tokens: nothing
is copied, and key heads are never repeated. An implementation that returns out in the layout of q, as ours do, needs no
copy before the last projection. An implementation whose dq, dk and dv are adjacent in memory as q, k and v are, as ours
do, needs no copy after its backward.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    bias: bool = False  # whether every projection has a bias
    causal: bool = False

    @property
    def hidden(self) -> int:
        """Return the width of the input and the output."""
        return self.num_heads * self.head_dim

    def widths(self, projection: str) -> tuple[int, int]:
        """Return the widths of the input and the output of a projection."""
        keys = self.num_kv_heads * self.head_dim
        outputs = {"qkv": 3 * self.hidden, "k": keys, "v": keys, "down": self.latent_dim, "up": 2 * self.hidden}
        return self.latent_dim if projection == "up" else self.hidden, outputs.get(projection, self.hidden)


# The projections of a layer besides the last, `out`. `qkv` makes queries, keys and values in this order, `up` the keys
# and values of all heads from the latent that `down` makes.
_FUSED, _SEPARATE, _LATENT = ("qkv",), ("q", "k", "v"), ("q", "down", "up")
KINDS = {  # subject of level layer -> projections, whether they have a bias
    "mha_fused": (_FUSED, False),
    "mha": (_SEPARATE, False),
    "gqa": (_SEPARATE, False),
    "mqa": (_SEPARATE, False),
    "mla": (_LATENT, False),
    "mha_fused_bias": (_FUSED, True),  # FlashTile's layers
    "gqa_bias": (_SEPARATE, True),
}


class AttentionLayer(nn.Module):
    """Projections of an input to queries, keys and values, an attention, and the projection `out`."""

    qkv: nn.Linear
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    down: nn.Linear
    up: nn.Linear
    out: nn.Linear

    def __init__(self, projections: Sequence[str], shape: LayerShape, attention: Attention, **like: Any) -> None:
        super().__init__()
        self.projections, self.shape, self.attention = projections, shape, attention
        for name in ("out", *projections):
            self.add_module(name, nn.Linear(*shape.widths(name), bias=shape.bias, **like))

    def around(self, attention: Attention) -> Self:
        """Return a layer around another attention that shares the weights of this layer."""
        other = copy.copy(self)
        other.attention = attention
        return other

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q (batch, num_heads, seqlen, head_dim), k and v (batch, num_kv_heads, seqlen, head_dim)."""
        head_dim = self.shape.head_dim
        if self.projections == _FUSED:
            q, k, v = _heads(self.qkv(x), head_dim, 3)
            return q, k, v
        (q,) = _heads(self.q(x), head_dim)
        if self.projections == _LATENT:
            k, v = _heads(self.up(self.down(x)), head_dim, 2)
            return q, k, v
        (k,), (v,) = _heads(self.k(x), head_dim), _heads(self.v(x), head_dim)
        return q, k, v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer for x (batch, seqlen, hidden), in the shape of x."""
        out = self.attention(*self.project(x), causal=self.shape.causal)
        return self.out(out.transpose(1, 2).flatten(2))


def build(
    kind: str, shape: LayerShape, attention: Attention, *, device: torch.device | str, dtype: torch.dtype
) -> AttentionLayer:
    """Return a layer of a kind with the random weights that PyTorch initializes.

    Raises KeyError with the available kinds.
    """
    if kind not in KINDS:
        raise KeyError(f"Unknown layer {kind!r}. Available: {', '.join(KINDS)}.")
    projections, bias = KINDS[kind]
    return AttentionLayer(projections, replace(shape, bias=bias), attention, device=device, dtype=dtype)


def _heads(x: torch.Tensor, head_dim: int, parts: int = 1) -> tuple[torch.Tensor, ...]:
    """Split (batch, seqlen, parts x heads x head_dim) into its parts, as views (batch, heads, seqlen, head_dim)."""
    return _views(x, head_dim, 1) if parts == 1 else _Parts.apply(x, head_dim, parts)


def _views(x: torch.Tensor, head_dim: int, parts: int) -> tuple[torch.Tensor, ...]:
    return tuple(part.transpose(1, 2) for part in x.unflatten(2, (parts, -1, head_dim)).unbind(2))


class _Parts(torch.autograd.Function):
    """Views of the parts of a tensor; the backward copies their gradients unless they are such views of one tensor."""

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
    """Return the tensor (batch, seqlen, parts, heads, head_dim) that has these parts, or None."""
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
