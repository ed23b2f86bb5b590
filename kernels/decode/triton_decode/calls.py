"""Calls of decoding by plans that are cached, and the operator `attnbench::decode`, which torch.compile keeps whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ... import choice, invariant, problem
from ...operators import operator
from ...plans import Decided, PlanCache, device_guard, plan_key, wants_gradients
from .request import Caches, Options, request_of

if TYPE_CHECKING:
    from .plan import Plan
    from .request import Request
    from .tuning import DecodeTile

PLANS: Decided[Plan] = Decided()
_GROWING: PlanCache[Plan] = PlanCache()  # the last plan of requests that differ in the length of their cache alone


def attend(
    q: torch.Tensor,
    caches: Caches,
    options: Options,
    return_lse: bool,
    tile: DecodeTile | None = None,
    *,
    one_launch: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return out and, with return_lse, the logsumexp of `triton_decode.decode` or `triton_mla.mla_decode`.

    Latents are both caches.
    """
    if torch.compiler.is_compiling():
        return decode_op(q, *caches[:4], *options[:4], *caches[4:], options.latent_dim)
    if invariant.wanted():
        return invariant.decode(q, caches, options)
    k, v, *others = caches
    key = plan_key(q, k, v, (options, tile, one_launch, wants_gradients(q, k, v), *map(_form_of, others)))
    plan = PLANS.get(key)
    if plan is None:
        aligned = not (q.data_ptr() | k.data_ptr()) & 15
        request = request_of(q, caches, options)
        tile = tile or tile_of(decided(q, k, request))
        plan = PLANS.remember(key, plan_of(request, tile, one_launch=one_launch, aligned=aligned))
    with device_guard(q.device):
        return plan(q, caches, return_lse)


def decided(q: torch.Tensor, cache: torch.Tensor, request: Request) -> choice.Decision | None:
    """Return what rules decide for a request; None if there is no rule."""
    if not choice.anything_named(q.device):
        return None
    sizes = {name: getattr(request, name) for name in ("batch", "num_heads", "num_kv_heads", "seqlen_q", "head_dim_v")}
    sizes |= {"seqlen_k": request.capacity, "head_dim": request.head_dim + request.rope_dim}
    own = {"paged": request.page > 0, "latent": request.rope_dim > 0}
    asked = problem.of_cache(q, cache, sizes, request.causal, request.window_size, **own)
    return choice.decide(q.device, asked, ("triton_split_kv",))


def tile_of(decision: choice.Decision | None) -> DecodeTile | None:
    """Return the tile of a form that a rule names; None if it names none."""
    if decision is None or "[" not in (decision.implementation or ""):
        return None
    from ... import forms
    from .tuning import DecodeTile

    return DecodeTile(*forms.named(str(decision.implementation))[0].result)


def plan_of_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Plan:
    """Return the plan of all keys of contiguous caches."""
    with torch.no_grad():  # the route serves calls that want gradients too, by its forward
        return plan_of(request_of(q, Caches(k, v), options, check_device=False), one_launch=True)


def plan_of(
    request: Request, tile: DecodeTile | None = None, *, one_launch: bool = False, aligned: bool = True
) -> Plan:
    """Return the plan of the fastest kernels for a request, or of `tile` (`Plan` describes `one_launch`).

    A cache of another length takes the plan of the last one. aligned: whether queries and latents begin at multiples
    of 16 bytes, as the copies of the Hopper kernel need.
    """
    from .plan import Plan  # imports triton, which may be missing

    if request.rope_dim and (tile is None or tile.form != "triton"):
        from ..gluon_mla import plan as hopper

        if aligned and hopper.suits(request):
            return hopper.HopperPlan(request)
    elif tile is None and not request.rope_dim:
        from . import prefill_rows

        if prefill_rows.suits(request):
            return prefill_rows.PrefillRowsPlan(request, one_launch=one_launch)
    key = (replace(request, capacity=0, strides=request.strides[:3]), tile, one_launch)
    known = _GROWING.get(key)
    return _GROWING.remember(key, (known and known.resized(request)) or Plan(request, tile, one_launch=one_launch))


def _form_of(x: torch.Tensor | None) -> Any:
    """Return the properties of a tensor that a plan depends on, with its alignment to 16 bytes."""
    return None if x is None else (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() & 15)


def _fake_results(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    shape, head_dim_v = q.shape[:3], v_cache.shape[3] if v_cache.dim() == 4 else rest[-1]
    return q.new_empty((*shape, head_dim_v)), q.new_empty(shape, dtype=torch.float32)


@operator(
    "decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? cache_seqlens, Tensor? page_table, str kv_layout,"
    " float? softmax_scale, bool causal, SymInt window_size, Tensor? k_scale, Tensor? v_scale, SymInt latent_dim=0)"
    " -> (Tensor, Tensor)",
    _fake_results,
)
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
    latent_dim: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (batch, num_heads, seqlen_q, head_dim_v) and the natural logsumexp (batch, num_heads, seqlen_q).

    With a latent_dim, which is then head_dim_v, both caches are the one of latents.
    """
    caches = Caches(k_cache, v_cache, cache_seqlens, page_table, k_scale, v_scale)
    return attend(q, caches, Options(kv_layout, softmax_scale, causal, window_size, latent_dim), True)
