"""From the tensors of a call to its plan, found again by what plans depend on, and the operator for torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...plans import PlanCache, device_guard, wants_gradients
from ..triton_decode.calls import form_of
from ..triton_decode.operators import results_like
from ..triton_decode.request import Caches, Options, latent_request_of

if TYPE_CHECKING:
    from ..triton_decode.plan import Plan
    from ..triton_decode.request import Request
    from ..triton_decode.tuning import DecodeTile

_PLANS: PlanCache[Plan] = PlanCache()


def attend_to_latents(
    q: torch.Tensor,
    caches: Caches,
    latent_dim: int,
    options: Options,
    return_lse: bool,
    tile: DecodeTile | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return out and, if asked for, the logsumexp of `triton_mla.mla_decode`; the latents are both caches."""
    kv, _, seqlens, table, *_ = caches
    key = (*map(form_of, (q, kv, seqlens, table)), latent_dim, options, tile, wants_gradients(q, kv, kv))
    plan = _PLANS.get(key)
    if plan is None:
        aligned = not (q.data_ptr() | kv.data_ptr()) & 15
        plan = _PLANS.remember(key, plan_of(latent_request_of(q, caches, latent_dim, options), tile, aligned=aligned))
    with device_guard(q.device):
        return plan(q, *caches, return_lse)


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
    """Compute latent attention as an operator that torch.compile keeps whole, without gradients.

    Returns out (batch, num_heads, seqlen_q, latent_dim) and the natural logsumexp (batch, num_heads, seqlen_q).
    """
    caches = Caches(kv_cache, kv_cache, cache_seqlens, page_table)
    options = Options(softmax_scale=softmax_scale, causal=causal)
    return attend_to_latents(q, caches, latent_dim, options, True)


@mla_decode_op.register_fake
def _(
    q: torch.Tensor, kv_cache: torch.Tensor, softmax_scale: float, latent_dim: int, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return results_like(q, latent_dim)


def plan_of(request: Request, tile: DecodeTile | None, *, aligned: bool = True) -> Plan:
    """Return the plan of the faster kernel, or of the one that `tile` is for.

    aligned: whether queries and latents begin at multiples of 16 bytes, as the copies of the Hopper kernel need.
    """
    from ..triton_decode.plan import Plan  # with triton, which may not be there

    if tile is None or tile.form != "triton":
        from ..gluon_mla.plan import HopperPlan, suits

        if aligned and suits(request):
            return HopperPlan(request)
    return Plan(request, tile)
