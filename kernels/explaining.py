"""What `kernels.attention` would run for some tensors, in one line."""

from typing import Any

import torch

from . import choice, feature_calls, routes, tables
from .dispatch import autocasted
from .features import Features, one_window
from .plans import wants_gradients
from .problem import CAPTURED, EAGER, FORWARD, TRAINING

_OF_PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "block_table", "copy_pages")
Options = tuple[bool, Any, float | None]  # causal, window_size, softmax_scale
_NO_RULE = "rules do not decide packed sequences with features, or over pages that are read in place"


def explain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: Any = 0,
    softmax_scale: float | None = None,
    compiled: bool = False,
    **asked: Any,
) -> str:
    """Return what would run and why: the rule file and its measured problem, or the built-in table.

    On a GPU also which chip's tiles the kernels take. With `compiled`, in a program of torch.compile. The arguments are
    those of `kernels.attention`, or with cu_seqlens_q by name those of `kernels.attention_varlen`. Nothing is computed.
    """
    said = _explained(*autocasted(q, k, v), (causal, window_size, softmax_scale), asked, compiled)
    return f"{said}; {tables.machine_of(q.device).words}" if q.device.type == "cuda" else said


def _explained(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, asked: dict[str, Any], compiled: bool
) -> str:
    _, asked = feature_calls.Wanted.taken_from(asked)
    if "cu_seqlens_q" in asked:
        return _packed(q, k, v, options, asked)
    if asked:
        wanted = Features(**asked).asked
        how = "triton_fa2" if feature_calls.takes(q, k, v, wanted) else "the definition in PyTorch"
        return f"{how}: rules do not decide calls with features ({', '.join(wanted) or 'none in effect'})"
    direction = TRAINING if wants_gradients(q, k, v) else FORWARD
    today = routes.built_in(q, k, v, *options, eager=not compiled)[direction]
    names = " and ".join(today) if len(today) == 1 else f"{today[0]} forward and {today[1]} backward"
    if choice.overridden():
        return (
            f"{names} for {direction}: the program sets SDPA's backends or deterministic algorithms, so no rule applies"
        )
    decided = routes.decisions(q, k, v, *options, regime=CAPTURED if compiled else EAGER).get(direction)
    if decided is None:
        return f"{names} for {direction}: built-in table, as there is no rule for such tensors"
    named = decided.implementation
    if compiled and named and not routes.pytorch_in_program(q, k, v, *options):
        named = named if routes.captured_plan(direction, q, k, v, *options) else None  # it has no operator
    return f"{named or names} for {direction}: {decided.why}"


def _packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, asked: dict[str, Any]) -> str:
    """Return what computes packed sequences, and what happens to pages."""
    before, sequences = "", len(asked["cu_seqlens_q"]) - 1
    features = Features(**{name: x for name, x in asked.items() if name not in _OF_PACKED})
    causal, window_size = one_window(*options[:2])
    scale = q.shape[2] ** -0.5 if options[2] is None else options[2]
    if asked.get("block_table") is not None:
        if not asked.get("copy_pages", True) and feature_calls.reads_pages(q, k, v):
            return f"triton_fa2 forward, which reads the pages in place: {_NO_RULE}"
        if feature_calls.reads_pages(q, k, v):
            from . import paged

            longest, plain = asked.get("max_seqlen_q", 0), not features.asked and type(window_size) is int
            if plain and paged.is_mixed(q, sequences, longest):
                before, sequences = "triton_decode for sequences with few queries; for the others ", len(q) // longest
            masks: Any = (causal, window_size, scale)
            if plain and paged.reads(q, (k, v), asked["block_table"], max(1, sequences), masks):
                return f"{before}gluon_hopper forward, which loads the pages in place: {_NO_RULE}"
        before, k, v = f"{before}a copy of the pages, then ", k.flatten(0, 1), v.flatten(0, 1)
    packed = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    ours = feature_calls.takes(*packed, ("varlen", *features.asked))
    how = "triton_fa2" if ours else "the definition in PyTorch, sequence by sequence"
    if features.asked or isinstance(window_size, tuple):
        return f"{before}{how}: {_NO_RULE}"
    if ours:
        names = routes.packed_names(*packed, sequences, (causal, window_size, scale))
        how = f"{names['forward']} forward and {names['backward']} backward"
    decided = routes.packed_decision(q, k, v, sequences, (causal, window_size, scale), ours)
    if decided is None:
        return f"{before}{how}: built-in table, as there is no rule for such tensors"
    return f"{before}{decided.implementation or how}: {decided.why}"
