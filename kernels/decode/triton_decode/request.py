"""What a plan depends on, and how it is read off the tensors of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from . import checks
from .checks import require


@dataclass(frozen=True)
class Request:
    """A problem of decoding without its tensors."""

    dtype: torch.dtype  # of the query and the output
    cache_dtype: torch.dtype
    batch: int
    num_heads: int
    num_kv_heads: int
    seqlen_q: int
    capacity: int  # keys that the cache, or a row of the page table, has room for
    page: int  # keys of a page, 0 for a contiguous cache
    head_dim: int
    head_dim_v: int
    ragged: bool
    causal: bool
    window_size: int
    softmax_scale: float
    strides: tuple[int, ...]  # q batch, head, token; k sequence or page, head, key, dim; v likewise; table; scales
    scaled: tuple[bool, bool]  # whether keys and values have factors
    rope_dim: int  # of a latent cache, else 0
    pairs: bool  # whether e4m3 values can be read two columns at a time
    device: torch.device


class Caches(NamedTuple):
    """What a query attends to; `triton_decode.decode` has the shapes."""

    k: torch.Tensor
    v: torch.Tensor
    seqlens: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None


class Options(NamedTuple):
    """What of a call is no tensor."""

    kv_layout: str = "NHD"
    softmax_scale: float | None = None
    causal: bool = True
    window_size: int = 0


class _Room(NamedTuple):
    """How a cache is divided."""

    num_kv_heads: int
    capacity: int  # keys that the cache, or a row of the page table, has room for
    page: int  # keys of a page, 0 for a contiguous cache
    order: tuple[int, ...]  # its dimensions as sequence or page, head, key, dim


def request_of(q: torch.Tensor, caches: Caches, options: Options, *, check_device: bool = True) -> Request:
    """Return the request of a call of `decode`. Raises UnsupportedCase with what was given and what is possible."""
    k, v = caches.k, caches.v
    checks.check_tensors(q, k, v)
    if check_device:
        checks.check_device(q)
    batch, num_heads, seqlen_q, head_dim = q.shape
    room = _room(batch, caches, options.kv_layout)
    checks.check_sharing(num_heads, room.num_kv_heads)
    checks.check_lengths(q, caches.seqlens, caches.page_table)
    strides = [tuple(x.stride(dim) for dim in room.order) for x in (k, v)]
    for name, (_, _, stride, _) in zip(("k_cache", "v_cache"), strides, strict=True):
        checks.check_spacing(name, stride, room.capacity)
    shape = (batch, room.num_kv_heads)
    scales = [checks.scale_strides("k_scale", caches.k_scale, k, shape)]
    scales.append(checks.scale_strides("v_scale", caches.v_scale, v, shape))
    return Request(
        dtype=q.dtype,
        cache_dtype=k.dtype,
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=room.num_kv_heads,
        seqlen_q=seqlen_q,
        capacity=room.capacity,
        page=room.page,
        head_dim=head_dim,
        head_dim_v=v.shape[3],
        ragged=caches.seqlens is not None,
        causal=options.causal,
        window_size=options.window_size or 0,
        softmax_scale=head_dim**-0.5 if options.softmax_scale is None else options.softmax_scale,
        strides=(*q.stride()[:3], *strides[0], *strides[1], _table_stride(caches), *scales[0], *scales[1]),
        scaled=(caches.k_scale is not None, caches.v_scale is not None),
        rope_dim=0,
        pairs=strides[1][3] == 1 and v.shape[3] % 2 == 0 and not any(x % 2 for x in strides[1][:3]),
        device=q.device,
    )


def latent_request_of(
    q: torch.Tensor, caches: Caches, latent_dim: int, options: Options, *, check_device: bool = True
) -> Request:
    """Return the request of a call of `mla_decode`, whose latents are both caches. Raises UnsupportedCase likewise."""
    kv, seqlens, table = caches.k, caches.seqlens, caches.page_table
    checks.check_latents(q, kv, latent_dim)
    if check_device:
        checks.check_device(q)
    batch, num_heads, seqlen_q, head_dim = q.shape
    checks.check_lengths(q, seqlens, table)
    page = 0 if table is None else kv.shape[1]
    capacity = kv.shape[1] if table is None else table.shape[1] * page
    require(table is not None or kv.shape[0] == batch, "The cache holds {} sequences, q {}.", kv.shape[0], batch)
    require(table is None or page > 0, "The pages of kv_cache hold no keys.")
    sequence, key, dim = kv.stride()
    checks.check_spacing("kv_cache", key, capacity)
    strides = (sequence, 0, key, dim)
    return Request(
        dtype=q.dtype,
        cache_dtype=kv.dtype,
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=1,
        seqlen_q=seqlen_q,
        capacity=capacity,
        page=page,
        head_dim=latent_dim,
        head_dim_v=latent_dim,
        ragged=seqlens is not None,
        causal=options.causal,
        window_size=0,
        softmax_scale=options.softmax_scale,
        strides=(*q.stride()[:3], *strides, *strides, _table_stride(caches), 0, 0, 0, 0),
        scaled=(False, False),
        rope_dim=head_dim - latent_dim,
        pairs=False,
        device=q.device,
    )


def _room(batch: int, caches: Caches, kv_layout: str) -> _Room:
    k, table = caches.k, caches.page_table
    if table is None:
        require(k.shape[0] == batch, "The cache holds {} sequences, q {}; they must agree.", k.shape[0], batch)
        return _Room(k.shape[1], k.shape[2], 0, (0, 1, 2, 3))
    require(kv_layout in checks.LAYOUTS, "Unknown kv_layout {!r}. Available: {}.", kv_layout, ", ".join(checks.LAYOUTS))
    order = (0, 2, 1, 3) if kv_layout == "NHD" else (0, 1, 2, 3)
    require(table.dim() == 2, "page_table has shape {}; decode needs ({}, pages).", tuple(table.shape), batch)
    page = k.shape[order[2]]
    require(page > 0, "The pages of k_cache hold no keys.")
    return _Room(k.shape[order[1]], table.shape[1] * page, page, order)


def _table_stride(caches: Caches) -> int:
    return 0 if caches.page_table is None else caches.page_table.stride(0)
