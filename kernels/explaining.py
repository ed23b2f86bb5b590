"""What computes a call, with which tile, and why: one answer for every way in.

It asks the functions that the call itself asks. Nothing is computed, and no kernel is compiled.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from . import choice, feature_calls, invariant, plans, routes, tables
from .dispatch import DTYPES, autocasted
from .feature_calls import Wanted
from .features import Features, SequenceBounds, one_window
from .problem import CAPTURED, EAGER, FORWARD, TRAINING
from .registry import UnsupportedCase

_OF_PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "block_table", "copy_pages")
_OF_CACHE = ("cache_seqlens", "page_table", "kv_layout", "k_scale", "v_scale", "latent_dim", "one_launch")
_INVARIANT = "within batch_invariant() its kernels with features compute every call"
_NO_RULE = "built-in table, as there is no rule for such tensors"
_DEFINITION = "the definition in PyTorch"
_DECODERS = {"HopperPlan": "gluon_mla", "PrefillRowsPlan": "gluon_hopper"}  # by their plan, other than triton_decode
Masks = tuple[bool, Any, float | None]  # causal, window_size, softmax_scale


@dataclass(frozen=True)
class Answer:
    """The implementations of a call, with what happens first, and the reason; `tile` with where it comes from."""

    what: str
    why: str
    direction: str = ""
    tile: str = ""

    def __str__(self) -> str:
        what = " for ".join(filter(None, (self.what, self.direction)))
        return "; ".join(filter(None, (f"{what}: {self.why}", self.tile)))


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> str:
    """Return `answer` in a line; on a GPU also which chip's tiles the kernels take."""
    said = str(answer(q, k, v, **options))
    return f"{said}; {tables.machine_of(q.device).words}" if q.device.type == "cuda" else said


def answer(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool | None = None,
    window_size: Any = 0,
    softmax_scale: float | None = None,
    compiled: bool = False,
    **asked: Any,
) -> Answer:
    """Return what would run and why: the rule file and its measured problem, or the built-in table.

    With `compiled`, in a program of torch.compile. The arguments are those of `kernels.attention`, with cu_seqlens_q by
    name those of `kernels.attention_varlen`, and with an argument of a cache, such as cache_seqlens=None, those of
    `kernels.decode`, or with latent_dim of `mla_decode`, whose cache is k and v.
    """
    try:
        if asked.keys() & set(_OF_CACHE):
            return _over_cache(q, k, v, (causal is not False, window_size, softmax_scale), asked)
        q, k, v = autocasted(q, k, v)
        scale = None if softmax_scale is None else plans.given_scale(softmax_scale, q.shape[-1])
        masks: Masks = (*one_window(bool(causal), window_size), scale)
        wanted, asked = Wanted.taken_from(asked)
        if "cu_seqlens_q" in asked:
            return _packed(q, k, v, masks, wanted, asked)
        plans.check_inputs("kernels.attention", q, k, v, DTYPES, math.inf, any_width=True)
        if asked or wanted != Wanted() or isinstance(masks[1], tuple) or invariant.wanted():
            return _with_features(q, k, v, masks, _features_of(asked, q), wanted)
        return _plain(q, k, v, masks, CAPTURED if compiled else EAGER)
    except UnsupportedCase as refused:
        return Answer("nothing", str(refused))


def _features_of(asked: dict[str, Any], q: torch.Tensor) -> Features:
    """Return the features as the call does, without a seed from PyTorch's generator. Raises TypeError."""
    return feature_calls.features_of({"dropout_seed": 0} | asked, q.device)


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, regime: str) -> Answer:
    direction = TRAINING if plans.wants_gradients(q, k, v) else FORWARD
    today = routes.built_in(q, k, v, *masks)[direction]
    tile = _tile(q, k, v, masks, today[0])
    if choice.overridden():
        why = "the program sets SDPA's backends or deterministic algorithms, so no rule applies"
        return Answer(_both(*today), why, direction, tile)
    decided = routes.decisions(q, k, v, *masks, regime=regime).get(direction)
    named = decided.implementation if decided else None
    if regime == CAPTURED and named and not routes.pytorch_in_program(q, k, v, *masks):
        named = named if routes.captured_plan(direction, q, k, v, *masks) else None  # it has no operator
    if named is None and direction == TRAINING and k.shape[2] == 1 and regime == EAGER:
        return Answer(_DEFINITION, "by which gradients of the only key are exactly 0", direction)
    return Answer(named or _both(*today), decided.why if decided else _NO_RULE, direction, "" if named else tile)


def _both(forward: str, backward: str | None = None) -> str:
    return forward if backward in (None, forward) else f"{forward} forward and {backward} backward"


def _with_features(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, found: Features, wanted: Wanted
) -> Answer:
    """Return what computes a call with features, with more results than out, or a window of two widths."""
    more = [name for name, there in wanted._asdict().items() if there]
    more += ["a window of two widths"] if isinstance(masks[1], tuple) else []
    why = f"rules do not decide calls with features ({', '.join((*found.asked, *more)) or 'none in effect'})"
    exact = k.shape[2] == 1 and plans.wants_gradients(q, k, v)
    ours = feature_calls.takes(q, k, v, found.asked) and feature_calls.learns_by_kernels(found, q, k, v)
    if not ours or exact:
        by_sdpa = found.asked == ("mask",) and not more and not any(masks[:2]) and (masks[2] is None or masks[2] > 0)
        return Answer("torch_sdpa_auto" if by_sdpa else _DEFINITION, why)
    return Answer(_both(*_names((q, k, v), masks, found, wanted)), _INVARIANT if invariant.wanted() else why)


def _names(
    tensors: plans.Tensors, masks: Masks, found: Features, wanted: Wanted, bounds: SequenceBounds | None = None
) -> tuple[str, str]:
    """Return which kernels of ours compute the forward and the backward of a call of `feature_calls.by_kernels`."""
    from .attention.triton_fa2.features.call import FeatureCall

    (causal, window_size, scale), (q, k, _) = masks, tensors
    call = FeatureCall(found, causal, window_size, plans.scale_of(scale, q.shape[3]), "ieee", bounds)
    plan = feature_calls.faster(call, *tensors, wanted)
    if isinstance(plan, (routes.Route, routes._DecodingRoute)):
        forward, backward = (routes.name(way, q, k, scale, window_size, causal) for way in ("forward", "backward"))
        return forward, backward
    if plan is None or type(plan).__name__ == "TritonPlan":
        return "triton_fa2", "triton_fa2"
    return "gluon_hopper", "triton_fa2" if isinstance(plan, feature_calls._ForwardOnHopper) else "gluon_hopper"


def _packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, wanted: Wanted, asked: dict[str, Any]
) -> Answer:
    """Return what computes packed sequences, and what happens to pages."""
    found = _features_of({name: x for name, x in asked.items() if name not in _OF_PACKED}, q)
    starts_q = asked["cu_seqlens_q"]
    starts_k, sequences = asked.get("cu_seqlens_k", starts_q), len(starts_q) - 1
    longest = asked.get("max_seqlen_q", len(q)), asked.get("max_seqlen_k", len(k))
    decided_masks: Any = (*masks[:2], plans.scale_of(masks[2], q.shape[2]))
    plain = not found.asked and wanted == Wanted() and type(masks[1]) is int and feature_calls._is_eager(q, k, v)
    table, before = asked.get("block_table"), ""
    if table is not None and feature_calls.reads_pages(q, k, v):
        more = dict.fromkeys(found.asked, True) | {name: True for name, there in wanted._asdict().items() if there}
        copies = asked.get("copy_pages", True)
        way, decided = feature_calls.way_over_pages(q, (k, v), table, longest[0], decided_masks, more, copies)
        why = decided.why if decided else _NO_RULE
        if way == routes.IN_PLACE:
            return Answer("triton_fa2 forward, which reads the pages in place", why)
        if way == feature_calls.BY_PARTS:
            return Answer(_by_parts(q, (k, v), table, longest[0], decided_masks, bool(more)), why)
    if table is not None:
        before, k, v = "a copy of the pages, then ", k.flatten(0, 1), v.flatten(0, 1)
    packed = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    ours = feature_calls.takes(*packed, ("varlen", *found.asked))
    how = f"{_DEFINITION}, sequence by sequence"
    if ours:
        bounds = SequenceBounds(starts_q[:-1], starts_q[1:], starts_k[:-1], starts_k[1:], *longest, packed=True)
        how = _both(*_names(packed, masks, found, wanted, bounds))
    if not plain:
        return Answer(f"{before}{how}", "rules do not decide packed sequences with features or more results than out")
    by_rule = routes.packed_decision(q, k, v, sequences, decided_masks, ours)
    named = by_rule.implementation if by_rule else None
    return Answer(f"{before}{named or how}", by_rule.why if by_rule else _NO_RULE)


def _by_parts(q: torch.Tensor, pages: Any, table: torch.Tensor, longest: int, masks: Any, return_lse: bool) -> str:
    """Return how `paged.attend` computes packed queries over pages."""
    from . import paged

    few = 0 if return_lse else paged.few_of(q, len(table), longest)
    if longest <= few:
        return "triton_decode"
    before = f"triton_decode for sequences of up to {few} queries; for the others " if few else ""
    long = -(-len(q) // longest)
    on_hopper, in_place = paged.ways(q, pages, table, long, masks)
    if in_place:
        return f"{before}gluon_hopper forward, which loads the pages in place"
    return f"{before}a copy of the pages, then {'gluon_hopper' if on_hopper else 'triton_fa2'}"


def _over_cache(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, asked: dict[str, Any]) -> Answer:
    """Return what decodes over a cache, and its tile."""
    from .decode.triton_decode import calls
    from .decode.triton_decode.request import Caches, Options, request_of

    given = {name: asked.get(name) for name in ("cache_seqlens", "page_table", "k_scale", "v_scale")}
    own = Options(asked.get("kv_layout", "NHD"), masks[2], *masks[:2], asked.get("latent_dim", 0))
    request = request_of(q, Caches(k, v, *given.values()), own)
    if invariant.wanted():
        return Answer("triton_fa2", _INVARIANT)
    decided = calls.decided(q, k, request)
    with tables.asked() as forms:
        plan = calls.plan_of(request, calls.tile_of(decided), one_launch=bool(asked.get("one_launch")))
    source = f" ({forms[-1].source.split('. ')[0]})" if forms else ""  # a growing cache keeps its plan
    name = _DECODERS.get(type(plan).__name__, "triton_decode")
    return Answer(name, decided.why if decided else _NO_RULE, FORWARD, f"tile: {plan.tile}{source}")


def _tile(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, name: str) -> str:
    """Return the tile of a forward on a GPU, with the first sentence of its table's source; nothing of others."""
    if q.device.type != "cuda" or name not in ("triton_fa2", "gluon_hopper"):
        return ""
    with tables.asked() as forms:
        if name == "triton_fa2":
            from .attention.triton_fa2.problem import TritonProblem

            asked = TritonProblem.of(q, k, *masks, "ieee")
            table = asked.forward_table
            forms.clear()
            asked.tiles(table)
            return f"tile: {forms[0].text} ({forms[0].source.split('. ')[0]})"
        from .attention.gluon_hopper import configs, plan

        machine, (batch, heads, seqlen_q, head_dim) = tables.machine_of(q.device), q.shape
        facts: Any = SimpleNamespace(
            size=configs.padded_head_dims(head_dim, v.shape[3])[0], head_dim=head_dim, n_heads=batch * heads,
            seqlen_q=seqlen_q, seqlen_k=k.shape[2], causal=masks[0], window_size=masks[1],
            multiprocessors=machine.multiprocessors, l2_bytes=machine.l2_bytes, group_size=heads // k.shape[1],
        )  # fmt: skip
        tiles, _ = plan._form(facts, q.dtype == torch.bfloat16)
        rows = tiles.consumers * configs.ROWS
        return f"tile: {rows} queries x {tiles.block_n} keys ({forms[-1].source.split('. ')[0]})"
