"""Multi-head latent attention over a cache of latents, absorbed (DeepSeek-V2, arXiv:2405.04434), in Triton.

The split-KV kernel of `triton_decode` with one key head for all query heads, whose values are the first dimensions of
its keys. The caller computes the products with W_UK before it and with W_UV after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .triton_decode.calls import attend
from .triton_decode.request import Caches, Options

if TYPE_CHECKING:
    from .triton_decode.tuning import DecodeTile


def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    *,
    softmax_scale: float,
    latent_dim: int = 512,
    cache_seqlens: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    causal: bool = True,
    return_lse: bool = False,
    tile: DecodeTile | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend with 1 to 16 absorbed query tokens of each sequence to a cache of latents and rotary keys.

    q: (batch, num_heads, seqlen_q, latent_dim + rope_dim); its first part is q_nope W_UK. kv_cache: (batch, capacity,
    latent_dim + rope_dim), or with a page_table, int32 (batch, pages of a sequence), pages of (pages, page_size,
    latent_dim + rope_dim). cache_seqlens: int32 (batch,), tokens in use; None means all. softmax_scale has no default,
    because it depends on the head_dim before absorption (1 / sqrt(192) for DeepSeek-V3), which the shapes do not show.

    Returns out (batch, num_heads, seqlen_q, latent_dim) in the dtype of q, and with return_lse the natural logsumexp
    (batch, num_heads, seqlen_q) in float32. A query that sees no token gets 0 and -inf. Tokens beyond a length and
    table entries beyond its pages are never read. CUDA graphs can capture a call after a first call.
    Raises UnsupportedCase for tensors that do not fit together.
    """
    caches = Caches(kv_cache, kv_cache, cache_seqlens, page_table)
    options = Options(softmax_scale=softmax_scale, causal=causal, latent_dim=latent_dim)
    out, lse = attend(q, caches, options, return_lse, tile)
    return (out, lse) if return_lse else out
