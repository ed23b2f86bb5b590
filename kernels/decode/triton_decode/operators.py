"""Decoding as PyTorch operators that torch.compile keeps whole: `attnbench::decode` and `attnbench::mla_decode`.

Both give out and the natural logsumexp; no gradients.
"""

from __future__ import annotations

import torch


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
    """out (batch, num_heads, seqlen_q, head_dim_v) and lse (batch, num_heads, seqlen_q) of `triton_decode.decode`."""
    from kernels.decode.triton_decode import decode

    return decode(
        q,
        k_cache,
        v_cache,
        cache_seqlens=cache_seqlens,
        page_table=page_table,
        kv_layout=kv_layout,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        k_scale=k_scale,
        v_scale=v_scale,
        return_lse=True,
    )


@decode_op.register_fake
def _(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(q, v_cache.shape[3])


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
    """out (batch, num_heads, seqlen_q, latent_dim) and lse (batch, num_heads, seqlen_q) of `triton_mla.mla_decode`."""
    from kernels.decode.triton_mla import mla_decode

    return mla_decode(
        q,
        kv_cache,
        softmax_scale=softmax_scale,
        latent_dim=latent_dim,
        cache_seqlens=cache_seqlens,
        page_table=page_table,
        causal=causal,
        return_lse=True,
    )


@mla_decode_op.register_fake
def _(
    q: torch.Tensor, kv_cache: torch.Tensor, softmax_scale: float, latent_dim: int, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(q, latent_dim)


def _like(q: torch.Tensor, head_dim_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty((*q.shape[:3], head_dim_v)), q.new_empty(q.shape[:3], dtype=torch.float32)
