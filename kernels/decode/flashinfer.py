"""FlashInfer's batch decoding over pages and over latents (Apache licence, flashinfer-ai/flashinfer), where installed.

One query token uses BatchDecodeWithPagedKVCacheWrapper on tensor cores, several use the prefill wrapper with a causal
mask, and latents use BatchMLAPagedAttentionWrapper. Sequences are split between pages, so a contiguous cache is passed
as pages too: as a view in layout HND. `plan` runs on the host, once, before a step is timed. A cache has one scale, so
the scales of heads are multiplied into q and out, by two more small kernels. The kernels are compiled with nvcc and
ninja at their first use.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from .. import packages
from ..registry import AttentionCase, Device
from .step import DecodeStep

# Its documentation recommends 128 MiB. 16 query tokens of 64 heads need more; 71 heads on one key head need 1.19 GB.
_WORKSPACE_BYTES = 1536 << 20
_VIEWED_PAGE = 64  # tokens of a page in the view of a contiguous cache, if its capacity is a multiple
_HEAD_DIMS = (64, 128, 256)


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a run of a planned wrapper."""
    if step.latent_dim:
        return _latent(step)
    run = _keys_and_values(step)
    return run if step.k_scale is None else _scaled(step, run)


def _keys_and_values(step: DecodeStep) -> Callable[..., torch.Tensor]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    caches, layout, page_size = (step.k_cache, step.v_cache), "NHD", step.page_size
    if not page_size:
        caches, layout = (_viewed(step.k_cache), _viewed(step.v_cache)), "HND"
        page_size = caches[0].shape[2]
    workspace = _workspace(step.q.device)
    pages = (*_pages(step, page_size), step.q.shape[1], step.num_kv_heads, step.q.shape[3], page_size)
    options: dict[str, Any] = {"q_data_type": step.q.dtype, "kv_data_type": step.k_cache.dtype, "sm_scale": step.scale}
    options["window_left"] = step.window_size - 1 if step.window_size else -1
    if step.query_tokens == 1:
        wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, layout, use_tensor_cores=True)
        wrapper.plan(*pages, **options)
        return lambda q=step.q: wrapper.run(q[:, :, 0], caches)[:, :, None]
    # The backend fa3 has tiles of 128 rows, most of them empty for a few query tokens.
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, layout, backend="fa2")
    wrapper.plan(step.query_starts, *pages, causal=step.causal, **options)
    return lambda q=step.q: step.like_q(wrapper.run(q.transpose(1, 2).flatten(0, 1), caches))


def _scaled(step: DecodeStep, run: Callable[..., torch.Tensor]) -> packages.Step:
    """Return the run with the scales of key heads in q and the scales of value heads in out."""
    of_keys, of_values = (scale[:, None, None, None] for scale in (step.k_scale, step.v_scale))
    heads = (step.num_kv_heads, -1)

    def attend() -> torch.Tensor:
        q = (step.q.unflatten(1, heads) * of_keys).to(step.q.dtype).flatten(1, 2)
        return (run(q).unflatten(1, heads) * of_values).to(step.q.dtype).flatten(1, 2)

    return attend


def _latent(step: DecodeStep) -> packages.Step:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    latent, heads, width = step.latent_dim, step.q.shape[1], step.q.shape[3]
    pages = step.k_cache[:, :, 0] if step.page_size else step.k_cache[:, 0]  # contiguous: one page a sequence
    page_size = pages.shape[1]
    wrapper = BatchMLAPagedAttentionWrapper(_workspace(step.q.device), backend="auto")
    lengths = (step.query_starts, *_pages(step, page_size)[:2], step.cache_seqlens)
    sizes = (heads, latent, width - latent, page_size)
    wrapper.plan(*lengths, *sizes, step.causal, step.scale, step.q.dtype, step.k_cache.dtype)
    ckv, kpe = pages[..., :latent], pages[..., latent:]

    def attend() -> torch.Tensor:
        q = step.query_rows
        return step.like_q(wrapper.run(q[..., :latent], q[..., latent:], ckv, kpe))

    return attend


def _viewed(cache: torch.Tensor) -> torch.Tensor:
    """Return a contiguous cache as overlapping pages (pages, num_kv_heads, tokens, head_dim).

    Page `sequence * pages of all its heads + n` holds the tokens from n times the size on, of every head.
    """
    batch, heads, capacity, head_dim = cache.shape
    size = math.gcd(capacity, _VIEWED_PAGE)
    starts = (batch * heads - (heads - 1)) * capacity // size  # no head of the last page is beyond the end
    strides = (size * head_dim, capacity * head_dim, head_dim, 1)
    return cache.as_strided((starts, heads, size, head_dim), strides)


def _pages(step: DecodeStep, page_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FlashInfer's page table: the first entry of each sequence, the entries, the tokens of each last page."""
    device = step.q.device
    counts = [-(-length // page_size) for length in step.lengths]
    starts = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
    rows: Any = step.page_table
    if rows is None:
        apart = step.num_kv_heads * step.k_cache.shape[2] // page_size
        rows = [torch.arange(count, dtype=torch.int32) + at * apart for at, count in enumerate(counts)]
    entries = torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)]).to(device)
    last = [length - (count - 1) * page_size for length, count in zip(step.lengths, counts, strict=True)]
    return starts, entries, torch.tensor(last, dtype=torch.int32, device=device)


@cache
def _workspace(device: torch.device) -> torch.Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    other = not case.latent_dim and (case.head_dim or 64) not in _HEAD_DIMS
    dims = ", ".join(map(str, _HEAD_DIMS))
    return f"flashinfer takes a head_dim of {dims}, not of {case.head_dim}." if other else None


IMPLEMENTATIONS = packages.decode("flashinfer", prepare, refuses=_refuses)
