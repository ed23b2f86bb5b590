"""The request of a call: everything that a plan depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...plans import scale_of
from . import checks
from .checks import require


@dataclass(frozen=True)
class Request:
    """A decoding problem without its tensors."""

    dtype: torch.dtype  # dtype of the query and the output
    cache_dtype: torch.dtype
    batch: int
    num_heads: int
    num_kv_heads: int
    seqlen_q: int
    capacity: int  # keys that fit into the cache, or into the pages of a row of the page table
    page: int  # keys of a page, 0 for a contiguous cache
    head_dim: int  # latent_dim for latents
    head_dim_v: int
    ragged: bool  # whether lengths are given
    causal: bool
    window_size: int
    softmax_scale: float
    strides: tuple[int, ...]  # q batch, head, token; k and v sequence or page, head, key, dim; table; scales
    scaled: tuple[bool, bool]  # whether keys and values have factors
    rope_dim: int  # rotary dimensions of a latent cache, else 0
    pairs: bool  # whether e4m3 values can be read two columns at a time
    device: torch.device


class Caches(NamedTuple):
    """The caches of a call; `triton_decode.decode` describes them. Latents are both k and v."""

    k: torch.Tensor
    v: torch.Tensor
    seqlens: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None


class Options(NamedTuple):
    """The arguments of a call that are no tensors."""

    kv_layout: str = "NHD"
    softmax_scale: float | None = None
    causal: bool = True
    window_size: int = 0
    latent_dim: int = 0  # 0 for a cache of keys and values


class _Room(NamedTuple):
    """The division of a cache."""

    num_kv_heads: int
    capacity: int
    page: int
    strides: list[tuple[int, ...]]  # keys and values: sequence or page, head, key, dim


def request_of(q: torch.Tensor, caches: Caches, options: Options, *, check_device: bool = True) -> Request:
    """Return the request of a call of `decode` or `mla_decode`. Raises UnsupportedCase for an impossible call."""
    k, latent_dim = caches.k, options.latent_dim
    if latent_dim:
        checks.check_latents(q, k, latent_dim)
    else:
        checks.check_tensors(q, k, caches.v)
    if check_device:
        checks.check_device(q)
    batch, num_heads, seqlen_q, width = q.shape
    checks.check_lengths(q, caches.seqlens, caches.page_table)
    room = (_room_of_latents if latent_dim else _room)(batch, caches, options.kv_layout)
    checks.check_sharing(num_heads, room.num_kv_heads)
    names = ("kv_cache", "kv_cache") if latent_dim else ("k_cache", "v_cache")
    for name, (_, _, stride, _) in zip(names, room.strides, strict=True):
        checks.check_spacing(name, stride, room.capacity)
    shape = (batch, room.num_kv_heads)
    scales = (("k_scale", caches.k_scale), ("v_scale", caches.v_scale))
    factors = [stride for name, scale in scales for stride in checks.scale_strides(name, scale, k, shape)]
    of_k, of_v = room.strides
    pages = 0 if caches.page_table is None else caches.page_table.stride(0)
    head_dim, head_dim_v = (latent_dim, latent_dim) if latent_dim else (width, caches.v.shape[3])
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
        head_dim_v=head_dim_v,
        ragged=caches.seqlens is not None,
        causal=options.causal,
        window_size=options.window_size or 0,
        softmax_scale=scale_of(options.softmax_scale, width),
        strides=(*q.stride()[:3], *of_k, *of_v, pages, *factors),
        scaled=(caches.k_scale is not None, caches.v_scale is not None),
        rope_dim=width - latent_dim if latent_dim else 0,
        pairs=not latent_dim and of_v[3] == 1 and head_dim_v % 2 == 0 and not any(x % 2 for x in of_v[:3]),
        device=q.device,
    )


def _room(batch: int, caches: Caches, kv_layout: str) -> _Room:
    k, table = caches.k, caches.page_table
    by_pages = table is not None
    require(not by_pages or kv_layout in checks.LAYOUTS, "layout", kv_layout)
    order = (0, 2, 1, 3) if by_pages and kv_layout == "NHD" else (0, 1, 2, 3)
    capacity, page = _capacity(batch, k, k.shape[order[2]], table)
    strides = [tuple(x.stride(dim) for dim in order) for x in (k, caches.v)]
    return _Room(k.shape[order[1]], capacity, page, strides)


def _room_of_latents(batch: int, caches: Caches, kv_layout: str) -> _Room:
    kv = caches.k
    sequence, key, dim = kv.stride()
    return _Room(1, *_capacity(batch, kv, kv.shape[1], caches.page_table), [(sequence, 0, key, dim)] * 2)


def _capacity(batch: int, cache: torch.Tensor, keys: int, table: torch.Tensor | None) -> tuple[int, int]:
    """Return the keys that fit into a cache with `keys` keys of a sequence or page, and the keys of a page."""
    if table is None:
        require(cache.shape[0] == batch, "sequences", cache.shape[0], batch)
        return keys, 0
    require(keys > 0, "pages")
    return table.shape[1] * keys, keys
