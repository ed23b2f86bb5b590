"""The PyTorch operator `attnbench::decode` for torch.compile, without gradients."""

from typing import Any

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
    latent_dim: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (batch, num_heads, seqlen_q, head_dim_v) and the natural logsumexp (batch, num_heads, seqlen_q).

    With a latent_dim, which is then head_dim_v, both caches are the one of latents.
    """
    caches = Caches(k_cache, v_cache, cache_seqlens, page_table, k_scale, v_scale)
    return attend(q, caches, Options(kv_layout, softmax_scale, causal, window_size, latent_dim), True)


@decode_op.register_fake
def _(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape, head_dim_v = q.shape[:3], v_cache.shape[3] if v_cache.dim() == 4 else rest[-1]
    return q.new_empty((*shape, head_dim_v)), q.new_empty(shape, dtype=torch.float32)
