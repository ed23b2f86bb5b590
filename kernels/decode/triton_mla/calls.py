"""From the tensors of an eager call to its plan, found again by what plans depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.decode.triton_decode.calls import form_of
from kernels.decode.triton_decode.request import Caches, Options, latent_request_of
from kernels.plans import PlanCache, device_guard, wants_gradients

if TYPE_CHECKING:
    from kernels.decode.triton_decode.plan import Plan
    from kernels.decode.triton_decode.request import Request
    from kernels.decode.triton_decode.tuning import DecodeTile

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
        plan = _PLANS.remember(key, plan_of(latent_request_of(q, caches, latent_dim, options), tile))
    with device_guard(q.device):
        return plan(q, *caches, return_lse)


def plan_of(request: Request, tile: DecodeTile | None) -> Plan:
    """Return the plan of the faster kernel, or of the one that `tile` is for."""
    from kernels.decode.triton_decode.plan import Plan  # with triton, which may not be there

    if tile is None or tile.form != "triton":
        from kernels.decode.gluon_mla.plan import HopperPlan, suits

        if suits(request):
            return HopperPlan(request)
    return Plan(request, tile)
