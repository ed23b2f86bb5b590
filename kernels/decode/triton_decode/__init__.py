"""Split-KV decoding in Triton for any GPU from compute capability 8.0: contiguous and paged caches, 16-bit and e4m3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels.plans import PlanCache, device_guard

if TYPE_CHECKING:
    from kernels.decode.triton_decode.plan import Plan
    from kernels.decode.triton_decode.tuning import Tile

MAX_SEQLEN_Q = 16
MAX_HEAD_DIM = 256
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("NHD", "HND")
_PLANS: PlanCache[Plan] = PlanCache()


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
    tile: Tile | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend with 1 to 16 query tokens a sequence to a cache of keys and values, which hold those tokens' own already.

    q: (batch, num_heads, seqlen_q, head_dim). k_cache, v_cache: (batch, num_kv_heads, capacity, head_dim); with a
    page_table, int32 (batch, pages of a sequence), pages of (pages, page_size, num_kv_heads, head_dim) for kv_layout
    "NHD" or (pages, num_kv_heads, page_size, head_dim) for "HND". cache_seqlens: int32 (batch,), keys in use, at most
    as many as there is room for; all if None. The last query stands at the last key (`causal`, `window_size` as
    `kernels.registry.Attention` defines them). k_scale, v_scale: float32 factors of an e4m3 cache, for all heads (),
    (num_kv_heads,) or (batch, num_kv_heads). `tile` overrides the tuning table.

    Returns out (batch, num_heads, seqlen_q, head_dim_v) in q's dtype, and with return_lse the natural logsumexp
    (batch, num_heads, seqlen_q) in float32: 0 and -inf for a query that sees no key. Keys beyond a length and table
    entries beyond its pages are never read. Nothing waits for the device: capture CUDA graphs after a first call.
    Raises UnsupportedCase for tensors that do not belong together.
    """
    if torch.compiler.is_compiling():
        from kernels.decode.triton_decode.operators import decode_op

        scales = (k_scale, v_scale)
        answer = decode_op(
            q, k_cache, v_cache, cache_seqlens, page_table, kv_layout, softmax_scale, causal, window_size, *scales
        )
        return answer if return_lse else answer[0]
    key = (
        *(q.dtype, q.shape, q.stride(), q.device, q.data_ptr() & 15),
        *(k_cache.dtype, k_cache.shape, k_cache.stride(), k_cache.device, k_cache.data_ptr() & 15),
        *(v_cache.dtype, v_cache.shape, v_cache.stride(), v_cache.device, v_cache.data_ptr() & 15),
        *(_form(cache_seqlens), _form(page_table), _form(k_scale), _form(v_scale)),
        *(kv_layout, softmax_scale, causal, window_size, tile),
        torch.is_grad_enabled() and (q.requires_grad or k_cache.requires_grad or v_cache.requires_grad),
    )
    plan = _PLANS.get(key)
    if plan is None:
        from kernels.decode.triton_decode.checks import request_of  # with triton, which may not be there
        from kernels.decode.triton_decode.plan import Plan

        request = request_of(
            q, k_cache, v_cache, cache_seqlens, page_table, kv_layout, softmax_scale, causal, window_size, k_scale,
            v_scale,
        )  # fmt: skip
        plan = _PLANS.remember(key, Plan(request, tile))
    with device_guard(q.device):
        out, lse = plan(q, k_cache, v_cache, cache_seqlens, page_table, k_scale, v_scale, return_lse)
    return (out, lse) if return_lse else out


def _form(x: torch.Tensor | None) -> Any:
    return None if x is None else (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() & 15)
