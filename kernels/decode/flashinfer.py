"""FlashInfer's batch decoding over pages and over latents (Apache licence, flashinfer-ai/flashinfer), where installed.

One query token goes to BatchDecodeWithPagedKVCacheWrapper on tensor cores, several to the prefill wrapper with a causal
mask, latents to BatchMLAPagedAttentionWrapper. Sequences are split between pages, so a contiguous cache is handed over
as pages too: a view in layout HND. `plan`, on the host, is done once before a step is timed. It takes one scale for a
cache, so the scales of heads are multiplied into q and out, two small kernels more. Its kernels are compiled with nvcc
and ninja at the first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate

import torch

from .. import attention_packages, decode_packages
from ..registry import AttentionCase, Device
from .step import DecodeStep

# 128 MiB, as its documentation recommends, is too little for 16 query tokens of 64 heads, and 512 MiB for 71 heads that
# share one key head: its plan asked for 1.19 GB.
_WORKSPACE_BYTES = 1536 << 20
_VIEWED_PAGE = 64  # tokens of the pages that a contiguous cache is seen as, where its capacity is a multiple
_HEAD_DIMS = (64, 128, 256)


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as a run of the wrapper that fits it, planned."""
    if step.latent_dim:
        return _latent(step)
    run = _decode(step) if step.query_tokens == 1 else _several_tokens(step)
    return run if step.k_scale is None else _scaled(step, run)


def _decode(step: DecodeStep) -> Callable[..., torch.Tensor]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    caches, layout, page_size = _caches(step)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(_workspace(step.q.device), layout, use_tensor_cores=True)
    wrapper.plan(
        *_pages(step, page_size),
        step.q.shape[1],
        step.num_kv_heads,
        step.q.shape[3],
        page_size,
        window_left=step.window_size - 1 if step.window_size else -1,
        q_data_type=step.q.dtype,
        kv_data_type=step.k_cache.dtype,
        sm_scale=step.scale,
    )
    return lambda q=step.q: wrapper.run(q[:, :, 0], caches)[:, :, None]


def _several_tokens(step: DecodeStep) -> Callable[..., torch.Tensor]:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    caches, layout, page_size = _caches(step)
    batch, tokens = len(step.lengths), step.query_tokens
    # The backend fa3 has tiles of 128 rows, which a group's few query tokens leave empty.
    wrapper = BatchPrefillWithPagedKVCacheWrapper(_workspace(step.q.device), layout, backend="fa2")
    starts = torch.arange(batch + 1, dtype=torch.int32, device=step.q.device) * tokens
    wrapper.plan(
        starts,
        *_pages(step, page_size),
        step.q.shape[1],
        step.num_kv_heads,
        step.q.shape[3],
        page_size,
        causal=step.causal,
        window_left=step.window_size - 1 if step.window_size else -1,
        q_data_type=step.q.dtype,
        kv_data_type=step.k_cache.dtype,
        sm_scale=step.scale,
    )

    def attend(q: torch.Tensor = step.q) -> torch.Tensor:
        out = wrapper.run(q.transpose(1, 2).flatten(0, 1), caches)
        return out.unflatten(0, (batch, tokens)).transpose(1, 2)

    return attend


def _scaled(step: DecodeStep, run: Callable[..., torch.Tensor]) -> decode_packages.Step:
    """Return the run with the scales of key heads in q and those of value heads in out."""
    of_keys, of_values = (scale[:, None, None, None] for scale in (step.k_scale, step.v_scale))
    heads = (step.num_kv_heads, -1)

    def attend() -> torch.Tensor:
        q = (step.q.unflatten(1, heads) * of_keys).to(step.q.dtype).flatten(1, 2)
        return (run(q).unflatten(1, heads) * of_values).to(step.q.dtype).flatten(1, 2)

    return attend


def _latent(step: DecodeStep) -> decode_packages.Step:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    batch, heads, tokens, width = step.q.shape
    device, latent = step.q.device, step.latent_dim
    wrapper = BatchMLAPagedAttentionWrapper(_workspace(device), backend="auto")
    pages, page_size = (step.k_cache[:, :, 0], step.page_size) if step.page_size else _one_page_each(step)
    starts, entries, _ = _pages(step, page_size)
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32, device=device) * tokens,
        starts,
        entries,
        step.cache_seqlens,
        heads,
        latent,
        width - latent,
        page_size,
        step.causal,
        step.scale,
        step.q.dtype,
        step.k_cache.dtype,
    )
    ckv, kpe = pages[..., :latent], pages[..., latent:]

    def attend() -> torch.Tensor:
        q = step.q.transpose(1, 2).reshape(batch * tokens, heads, width)
        out = wrapper.run(q[..., :latent], q[..., latent:], ckv, kpe)
        return out.unflatten(0, (batch, tokens)).transpose(1, 2)

    return attend


def _one_page_each(step: DecodeStep) -> tuple[torch.Tensor, int]:
    """Return a contiguous latent cache as a page a sequence, and its capacity."""
    return step.k_cache[:, 0], step.k_cache.shape[2]


def _caches(step: DecodeStep) -> tuple[tuple[torch.Tensor, torch.Tensor], str, int]:
    """Return the caches as pages, their layout and the tokens of a page."""
    if step.page_size:
        return (step.k_cache, step.v_cache), "NHD", step.page_size
    pages = tuple(_viewed(cache) for cache in (step.k_cache, step.v_cache))
    return pages, "HND", pages[0].shape[2]


def _viewed(cache: torch.Tensor) -> torch.Tensor:
    """Return a contiguous cache as pages (pages, num_kv_heads, tokens, head_dim) that start one after the other.

    Page `sequence * pages of all its heads + n` holds the tokens from n times the size on, of every head.
    """
    batch, heads, capacity, head_dim = cache.shape
    size = math.gcd(capacity, _VIEWED_PAGE)
    starts = batch * heads * capacity // size - (heads - 1) * capacity // size  # of the last, no head is beyond the end
    strides = (size * head_dim, capacity * head_dim, head_dim, 1)
    return cache.as_strided((starts, heads, size, head_dim), strides)


def _pages(step: DecodeStep, page_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FlashInfer's page table: where each sequence's entries start, the entries, the tokens of its last page."""
    device = step.q.device
    counts = [-(-length // page_size) for length in step.lengths]
    starts = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
    if step.page_table is None:
        apart = step.num_kv_heads * step.k_cache.shape[2] // page_size
        each = [torch.arange(count, dtype=torch.int32) + at * apart for at, count in enumerate(counts)]
        entries = torch.cat(each).to(device)
    else:
        entries = torch.cat([row[:count] for row, count in zip(step.page_table, counts, strict=True)])
    last = [length - (count - 1) * page_size for length, count in zip(step.lengths, counts, strict=True)]
    return starts, entries, torch.tensor(last, dtype=torch.int32, device=device)


@cache
def _workspace(device: torch.device) -> torch.Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if case.latent_dim:
        if case.window_size:
            return "flashinfer takes no sliding window over latents."
        if case.cache_dtype not in (None, case.dtype):
            return "flashinfer takes latents in 16 bits alone here."
        return decode_packages.only_these_latents("flashinfer", case)
    if (case.head_dim or 64) not in _HEAD_DIMS:
        return f"flashinfer takes a head_dim of {', '.join(map(str, _HEAD_DIMS))}, not of {case.head_dim}."
    return None


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "flashinfer",
        "FlashInfer's batch decoding over pages and latents, where it is installed",
        prepare,
        attention_packages.missing("flashinfer-python", "FlashInfer is not installed: pip install flashinfer-python."),
        paged=True,
        ragged=True,
        quantised=True,
        latent=True,
        planned="plan() on the host: how each sequence is split",
        min_compute_capability=(8, 0),
        colour="#8c564b",
        compiled="first_call",
        refuses=_refuses,
    ),
)
