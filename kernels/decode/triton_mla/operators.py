"""Latent attention as a PyTorch operator that torch.compile keeps whole: `attnbench::mla_decode`, without gradients."""

from __future__ import annotations

import torch

from kernels.decode.triton_decode.operators import results_like
from kernels.decode.triton_decode.request import Caches, Options
from kernels.decode.triton_mla.calls import attend_to_latents


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
    options = Options(softmax_scale=softmax_scale, causal=causal)
    return attend_to_latents(q, caches, latent_dim, options, True)


@mla_decode_op.register_fake
def _(
    q: torch.Tensor, kv_cache: torch.Tensor, softmax_scale: float, latent_dim: int, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return results_like(q, latent_dim)
