"""The PyTorch operators `attnbench::decode` and `attnbench::mla_decode` for torch.compile, without gradients."""

from __future__ import annotations

import torch

from .calls import attend
from .request import Caches, Options


@torch.library.custom_op("attnbench::decode", mutates_args=())
def decode_op(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor | None,
    page_table: torch.Tensor | None,
    kv_layout: str,
    softmax_scale: float | None,
    causal: bool,
    window_size: int,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (batch, num_heads, seqlen_q, head_dim_v) and the natural logsumexp (batch, num_heads, seqlen_q)."""
    caches = Caches(k_cache, v_cache, cache_seqlens, page_table, k_scale, v_scale)
    return attend(q, caches, Options(kv_layout, softmax_scale, causal, window_size), True)


@decode_op.register_fake
def _(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return _results_like(q, v_cache.shape[3])


@torch.library.custom_op("attnbench::mla_decode", mutates_args=())
def mla_decode_op(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    softmax_scale: float,
    latent_dim: int,
    cache_seqlens: torch.Tensor | None,
    page_table: torch.Tensor | None,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (batch, num_heads, seqlen_q, latent_dim) and the natural logsumexp (batch, num_heads, seqlen_q)."""
    caches = Caches(kv_cache, kv_cache, cache_seqlens, page_table)
    return attend(q, caches, Options("NHD", softmax_scale, causal, latent_dim=latent_dim), True)


@mla_decode_op.register_fake
def _(
    q: torch.Tensor, kv_cache: torch.Tensor, softmax_scale: float, latent_dim: int, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return _results_like(q, latent_dim)


def _results_like(q: torch.Tensor, head_dim_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty((*q.shape[:3], head_dim_v)), q.new_empty(q.shape[:3], dtype=torch.float32)
