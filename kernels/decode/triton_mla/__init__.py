"""Multi-head latent attention over a cache of latents, absorbed (DeepSeek-V2, arXiv:2405.04434), in Triton.

The split-KV kernel of `triton_decode` with one key head for all query heads, whose values are the first dimensions of
its keys. The products with W_UK before it and W_UV after it are the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels.plans import PlanCache, device_guard

if TYPE_CHECKING:
    from kernels.decode.triton_decode.plan import Plan, Request
    from kernels.decode.triton_decode.tuning import Tile

_PLANS: PlanCache[Plan] = PlanCache()


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
    tile: Tile | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend with 1 to 16 absorbed query tokens a sequence to a cache of latents and rotary keys.

    q: (batch, num_heads, seqlen_q, latent_dim + rope_dim), its first part q_nope W_UK. kv_cache: (batch, capacity,
    latent_dim + rope_dim), or with a page_table, int32 (batch, pages of a sequence), pages of (pages, page_size,
    latent_dim + rope_dim). cache_seqlens: int32 (batch,), tokens in use; all if None. softmax_scale has no default:
    it is that of the heads before absorption (1 / sqrt(192) for DeepSeek-V3), which the shapes do not tell.

    Returns out (batch, num_heads, seqlen_q, latent_dim) in q's dtype, and with return_lse the natural logsumexp
    (batch, num_heads, seqlen_q) in float32: 0 and -inf for a query that sees no token. Tokens beyond a length and
    table entries beyond its pages are never read; CUDA graphs capture a call after a first one.
    Raises UnsupportedCase for tensors that do not belong together.
    """
    if torch.compiler.is_compiling():
        from kernels.decode.triton_decode.operators import mla_decode_op

        answer = mla_decode_op(q, kv_cache, softmax_scale, latent_dim, cache_seqlens, page_table, causal)
        return answer if return_lse else answer[0]
    key = (
        *(q.dtype, q.shape, q.stride(), q.device, q.data_ptr() & 15),
        *(kv_cache.dtype, kv_cache.shape, kv_cache.stride(), kv_cache.device, kv_cache.data_ptr() & 15),
        *(_form(cache_seqlens), _form(page_table), latent_dim, softmax_scale, causal, tile),
        torch.is_grad_enabled() and (q.requires_grad or kv_cache.requires_grad),
    )
    plan = _PLANS.get(key)
    if plan is None:
        from kernels.decode.triton_decode.checks import latent_request_of  # with triton, which may not be there

        request = latent_request_of(q, kv_cache, latent_dim, cache_seqlens, page_table, softmax_scale, causal)
        plan = _PLANS.remember(key, plan_of(request, tile))
    with device_guard(q.device):
        out, lse = plan(q, kv_cache, kv_cache, cache_seqlens, page_table, None, None, return_lse)
    return (out, lse) if return_lse else out


def plan_of(request: Request, tile: Tile | None) -> Plan:
    """The plan of the faster kernel, or of the one that `tile` is for."""
    from kernels.decode.triton_decode.plan import Plan

    if tile is None or tile.form != "triton":
        from kernels.decode.gluon_mla.plan import HopperPlan, suits

        if suits(request):
            return HopperPlan(request)
    return Plan(request, tile)


def _form(x: torch.Tensor | None) -> Any:
    return None if x is None else (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() & 15)
