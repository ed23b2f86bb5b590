"""Split-KV decoding in Triton for any GPU from compute capability 8.0: contiguous and paged caches, 16-bit and e4m3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .calls import attend
from .checks import MAX_HEAD_DIM, MAX_SEQLEN_Q
from .request import Caches, Options

if TYPE_CHECKING:
    from .tuning import DecodeTile

__all__ = ["MAX_HEAD_DIM", "MAX_SEQLEN_Q", "decode"]


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: int = 0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    return_lse: bool = False,
    one_launch: bool = False,
    tile: DecodeTile | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend with 1 to 16 query tokens of each sequence to a cache, which includes the keys and values of these tokens.

    q: (batch, num_heads, seqlen_q, head_dim). k_cache, v_cache: (batch, num_kv_heads, capacity, head_dim); with a
    page_table, int32 (batch, pages of a sequence), pages of (pages, page_size, num_kv_heads, head_dim) for kv_layout
    "NHD" or (pages, num_kv_heads, page_size, head_dim) for "HND". cache_seqlens: int32 (batch,), keys in use, at most
    the capacity; None means all. The last query is aligned with the last key (`kernels.registry.Attention` defines
    `causal` and `window_size`). k_scale, v_scale: float32 factors of an e4m3 cache, for all heads (), (num_kv_heads,)
    or (batch, num_kv_heads). `one_launch` uses a single launch for short caches: slower alone, faster between chained
    launches. `tile` overrides the tuning table.

    Returns out (batch, num_heads, seqlen_q, head_dim_v) in the dtype of q, and with return_lse the natural logsumexp
    (batch, num_heads, seqlen_q) in float32. A query that sees no key gets 0 and -inf. Keys beyond a length and table
    entries beyond its pages are never read. There is no synchronization; capture CUDA graphs after a first call.
    Raises UnsupportedCase for tensors that do not fit together.
    """
    caches = Caches(k_cache, v_cache, cache_seqlens, page_table, k_scale, v_scale)
    options = Options(kv_layout, softmax_scale, causal, window_size)
    out, lse = attend(q, caches, options, return_lse, tile, one_launch=one_launch)
    return (out, lse) if return_lse else out
