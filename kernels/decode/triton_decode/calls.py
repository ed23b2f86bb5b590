"""From the tensors of an eager call to its plan, found again by what plans depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...plans import PlanCache, device_guard, plan_key, wants_gradients
from .request import Caches, Options, request_of

if TYPE_CHECKING:
    from .plan import Plan
    from .request import Request
    from .tuning import DecodeTile

PLANS: PlanCache[Plan] = PlanCache()


def attend(
    q: torch.Tensor,
    caches: Caches,
    options: Options,
    return_lse: bool,
    tile: DecodeTile | None = None,
    *,
    one_launch: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return out and, if asked for, the logsumexp of `triton_decode.decode`."""
    k, v, *others = caches
    key = plan_key(q, k, v, (options, tile, one_launch, wants_gradients(q, k, v), *map(form_of, others)))
    plan = PLANS.get(key)
    if plan is None:
        plan = PLANS.remember(key, plan_of(request_of(q, caches, options), tile, one_launch=one_launch))
    with device_guard(q.device):
        return plan(q, *caches, return_lse)


def plan_of(request: Request, tile: DecodeTile | None = None, *, one_launch: bool = False) -> Plan:
    """Return the plan of the kernels that serve a request fastest, or of `tile` (`one_launch` as `Plan` has it)."""
    from .plan import Plan  # with triton, which may not be there
    from .prefill_rows import PrefillRowsPlan, suits

    if tile is None and suits(request):
        return PrefillRowsPlan(request, one_launch=one_launch)
    return Plan(request, tile, one_launch=one_launch)


def form_of(x: torch.Tensor | None) -> Any:
    """Return what a plan depends on of a tensor: dtype, shape, strides, device and alignment to 16 bytes."""
    return None if x is None else (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() & 15)
