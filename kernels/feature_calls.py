"""Attention with features and of packed sequences: which calls our kernels take, plain PyTorch's part, the operators.

Packed sequences without a feature go to gluon_hopper where it is faster (`kernels.routes`), all else to triton_fa2.

`attnbench::attention_with_features` and its backward are what torch.compile keeps whole.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from . import choice, dispatch, features, invariant, lse, plans, registry, routes
from .features import BlockMask, Features, SequenceBounds, Window
from .operators import differentiable, operator
from .registry import UnsupportedCase

_NO_FEATURES = Features()
_uncompiled: Any = None  # `by_kernels`, once a compiled program has called it for more than out
BY_PARTS = "paged"  # how `way_over_pages` names `paged.attend`
_SHORT_WINDOW = 128  # keys, with sinks at head_dim 64: triton_fa2's forward takes 0.74 of gluon_hopper's time (H200)
RowMasks = tuple[bool, Window, float | None]  # causal, window_size, softmax_scale
_NAMES = tuple(each.name for each in fields(Features))


class Wanted(NamedTuple):
    """Arguments of a call that change no number of out."""

    return_lse: bool = False
    return_max_logits: bool = False
    deterministic: bool = False  # the same bits of the gradients in every run

    @classmethod
    def taken_from(cls, asked: dict[str, Any]) -> tuple[Wanted, dict[str, Any]]:
        """Return these arguments and the others."""
        own = {name: bool(asked[name]) for name in cls._fields if name in asked}
        return cls(**own), {name: x for name, x in asked.items() if name not in own}

    def of(self, out: torch.Tensor, lse: torch.Tensor, max_logits: torch.Tensor | None = None) -> Any:
        """Return the result of the call: out, or a tuple of out and what else was asked for."""
        found = (out, *((lse.float(),) if self.return_lse else ()), *(() if max_logits is None else (max_logits,)))
        return found if len(found) > 1 else out


_PLAIN_RESULT = Wanted()


def attention_with(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: dict[str, Any], masks: RowMasks) -> Any:
    """Compute attention with fields of Features and of Wanted: by our kernels, or from the definition.

    `masks`: causal, window_size and softmax_scale. A window of two numbers is (left, right): a query sees so many keys
    before and after its position, -1 for all. With return_lse the result is out and lse; with return_max_logits it
    ends with the largest score of each head after scale, softcap, slopes and masks, float32 (num_heads,), without a
    gradient. Raises UnsupportedCase for features that do not go with the tensors.
    """
    wanted, asked = Wanted.taken_from(asked)
    causal, window_size, softmax_scale = *features.one_window(*masks[:2]), masks[2]
    if not asked and wanted == _PLAIN_RESULT and not isinstance(window_size, tuple):
        return dispatch.attention(q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale)
    found, options = _read(asked, q, (*q.shape[:3], k.shape[2]), (causal, window_size, softmax_scale))
    if wanted.return_max_logits and found.sinks is not None:
        raise UnsupportedCase("return_max_logits does not go with sinks, which are logits without a key.")
    exact = k.shape[2] == 1 and plans.wants_gradients(q, k, v)  # then gradients of the only key are 0
    if takes(q, k, v, found.asked) and learns_by_kernels(found, q, k, v) and not exact:
        return by_kernels(q, k, v, found, options, None, wanted)
    named = routes.by_name(*options)
    if wanted.return_lse or wanted.return_max_logits:
        largest = None
        if wanted.return_max_logits:
            scores = features.logits(q, k, found, **named).detach().transpose(0, 1).flatten(1).float()
            largest = functional.pad(scores, (0, 1), value=float("-inf")).amax(1)  # also of no scores
        return wanted.of(*features.attention_and_lse(q, k, v, found, **named), largest)
    if found.asked == ("mask",) and not causal and not window_size and options[2] > 0:
        grouped = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(q, k, v, found.mask, scale=options[2], enable_gqa=grouped)
    return features.attention(q, k, v, found, **named)


def attention_padded(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    real: torch.Tensor,
    bounds: SequenceBounds | None = None,
    *,
    holes: bool = True,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
    **asked: Any,
) -> torch.Tensor:
    """Compute attention of sequences with padding by triton_fa2, in one launch that reads nothing back.

    real: (batch, seqlen_k), True for tokens. Keys of padding are not seen, and blocks before a sequence's first token
    or after its last one are not computed: out is 0 in such rows. Under a causal mask the last query is at the last
    key, otherwise all queries are tokens. `asked` may not name tensors of queries or keys; `bounds` are those of `real`
    (`bounds_of`), where they are known; without `holes` there is no padding between tokens.
    """
    asked |= {"mask": real[:, None, None, :]} if holes else {}
    found, options = _read(asked, q, (*q.shape[:3], k.shape[2]), (causal, window_size, softmax_scale))
    return by_kernels(q, k, v, found, options, bounds or bounds_of(real, q.shape[2], causal))


def bounds_of(real: torch.Tensor, seqlen_q: int, causal: bool) -> SequenceBounds:
    """Return from where to where sequences have tokens; of one without any, everything."""
    seqlen_k = real.shape[1]
    starts = real.int().argmax(1).int()
    ends = seqlen_k - real.flip(1).int().argmax(1).int()
    if causal:
        of_q = (starts - (seqlen_k - seqlen_q)).clamp(0), (ends - (seqlen_k - seqlen_q)).clamp(0)
    else:
        of_q = torch.zeros_like(starts), torch.full_like(ends, seqlen_q)
    return SequenceBounds(*of_q, starts, ends, seqlen_q, seqlen_k, packed=False)


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window_size: Window = 0,
    softmax_scale: float | None = None,
    block_table: torch.Tensor | None = None,
    copy_pages: bool = True,
    **asked: Any,
) -> Any:
    """Compute attention of sequences that lie one after the other: q (total_q, num_heads, head_dim) gives out like q.

    k, v: (total_k, num_kv_heads, head_dim or head_dim_v). Sequence i has the queries from cu_seqlens_q[i] to
    cu_seqlens_q[i + 1] and the keys from cu_seqlens_k[i] to cu_seqlens_k[i + 1]; either may be empty. Starts are int32
    and contiguous, or else copied. Masks and features apply within each sequence; masks given as tensors and document
    ids need a batch. There is no device-to-host synchronization on a GPU. With a block_table, int32 (sequences, pages
    of a sequence), k and v are (pages, page_size, num_kv_heads, head_dim), which gluon_hopper loads in place and other
    kernels copy into one row. Where many sequences seem to have few queries, those are decoded over their pages
    (`paged`). Without copy_pages a kernel of triton_fa2 reads all where they lie, if it takes the tensors and no
    gradient is wanted, which takes 2 to 3 times as long on an H200 and no room for a copy (sweep `paged_prefill`). The
    fields of Wanted are arguments, too; lse is (num_heads, total_q).

    Raises UnsupportedCase for tensors or features that do not belong together.
    """
    if block_table is not None:
        _check_pages(k, v, block_table, max_seqlen_k, len(cu_seqlens_k) - 1)
    _check_packed(q, k if block_table is None else k[0], cu_seqlens_q, cu_seqlens_k, asked)
    if reads(q) and _runs_now(q, cu_seqlens_q, cu_seqlens_k):
        _check_starts(cu_seqlens_q, len(q), max_seqlen_q)
        _check_starts(cu_seqlens_k, len(k) if block_table is None else block_table.numel() * len(k[0]), max_seqlen_k)
    starts_q, starts_k = (x.to(torch.int32).contiguous() for x in (cu_seqlens_q, cu_seqlens_k))
    longest = max_seqlen_q, max_seqlen_k
    bounds = SequenceBounds(starts_q[:-1], starts_q[1:], starts_k[:-1], starts_k[1:], *longest, packed=True)
    given: RowMasks = (causal, window_size, softmax_scale)
    if block_table is not None:
        if reads_pages(q, k, v):
            from . import paged  # imports triton, which may be missing

            masks: Any = _read({}, q, (), given)[1]
            way, _ = way_over_pages(q, (k, v), block_table, max_seqlen_q, masks, asked, copy_pages=copy_pages)
            if way == routes.IN_PLACE:
                return _over_pages(q, (k, v), bounds, block_table, asked, given)
            starts = starts_q, starts_k
            if way == BY_PARTS:
                return paged.attend(q, (k, v), starts, longest, block_table, masks, bool(asked))
            if paged.takes(q, k, v):
                (k, v), bounds = paged.copied(q, (k, v), starts, longest, block_table)
        if k.dim() == 4:
            (k, v), bounds = _rows_of_pages((k, v), block_table, bounds)
    return attention_of_rows(q, k, v, bounds, asked, given)


def way_over_pages(
    q: torch.Tensor, pages: Any, table: torch.Tensor, longest: int, masks: Any, asked: dict[str, Any], copy_pages: bool
) -> tuple[str, choice.Decision | None]:
    """Return how packed queries attend to pages of k and v that `reads_pages` accepts, and what rules decide.

    A kernel of triton_fa2 reads them `routes.IN_PLACE`, `paged.attend` computes BY_PARTS, or "" there is a copy. masks:
    causal, window_size and the scale; asked: fields of Features and of Wanted.
    """
    from . import paged

    k, v = pages
    sequences, room = len(table), table.shape[1] * k.shape[1]
    with_lse = asked == {"return_lse": True} and longest > 0
    plain = (not asked or with_lse) and type(masks[1]) is int and masks[2] > 0 and _is_eager(q, k, v)
    decided = routes.packed_decision(q, k, v, sequences, masks, True, room) if plain and not asked else None
    if not copy_pages or (decided and decided.implementation == routes.IN_PLACE):
        return routes.IN_PLACE, decided
    if not plain or not paged.takes(q, k, v):
        return "", decided
    mixed = not asked and paged.is_mixed(q, sequences, longest)
    by_parts = mixed or paged.ways(q, pages, table, sequences, masks)[1 if decided else 0]
    return BY_PARTS if by_parts else "", decided


def reads_pages(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether triton_fa2 computes packed queries over pages of k and v without copying them."""
    if plans.wants_gradients(q, k, v) or not _runs_now(q, k, v):
        return False
    return q.dim() == 3 and takes(q.transpose(0, 1)[None], k[:1].transpose(1, 2), v[:1].transpose(1, 2), ("varlen",))


def _over_pages(
    q: torch.Tensor, pages: Any, bounds: SequenceBounds, block_table: torch.Tensor, asked: dict[str, Any], masks: Any
) -> Any:
    """Compute attention of packed queries to keys that a kernel reads through the table of their pages."""
    from .attention.triton_fa2.features.call import FeatureCall

    packed, k, v = q.transpose(0, 1)[None], *(x.transpose(1, 2) for x in pages)
    plans.check_inputs("triton_fa2", packed, k[:1], v[:1], routes.DTYPES, any_width=True)
    wanted, asked = Wanted.taken_from(asked)
    found, options = _read(asked, q, (len(bounds.starts_q), q.shape[1], *bounds[4:6]), masks)
    ends = bounds.ends_k - bounds.starts_k
    bounds = bounds._replace(starts_k=torch.zeros_like(ends), ends_k=ends)
    table = block_table.int() if block_table.stride(-1) == 1 else block_table.int().contiguous()
    call = FeatureCall(found.seeded(q.device), *options, "ieee", bounds, table)
    out, statistics = call.forward(packed, k, v)
    return _as_rows(wanted.of(out, lse.natural(statistics)))


def attention_of_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, asked: dict[str, Any], masks: RowMasks
) -> Any:
    """Compute attention of sequences whose queries lie one after the other, and whose keys lie where bounds say.

    `asked`: fields of Features and of Wanted; `masks`: causal, window_size and softmax_scale. Sequences may share keys
    or leave some out if `deterministic` is asked for, which keeps them from gluon_hopper.
    """
    wanted, asked = Wanted.taken_from(asked)
    found, options = _read(asked, q, (len(bounds.starts_q), q.shape[1], *bounds[4:6]), masks)
    packed = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    ours = takes(*packed, ("varlen", *found.asked))
    plain = wanted == _PLAIN_RESULT and not found.asked and type(options[1]) is int and _is_eager(q, k, v)
    decided = routes.packed_decision(q, k, v, len(bounds.starts_q), options, ours) if plain else None
    if decided and decided.implementation:
        try:
            attend = registry.get(decided.implementation).attention
            return _as_rows(attend(*packed, features=found, bounds=bounds, **routes.by_name(*options)))
        except (UnsupportedCase, ImportError) as reason:
            routes.give_up(decided.implementation, reason)
    if ours:
        return _as_rows(by_kernels(*packed, found, options, bounds, wanted))
    plans.check_inputs("attention_varlen", *packed, dispatch.DTYPES, math.inf, any_width=True)
    return _as_rows(wanted.of(*features.attention_of_sequences(*packed, found, bounds, **routes.by_name(*options))))


def _read(
    asked: dict[str, Any], q: torch.Tensor, scores: Any, masks: RowMasks
) -> tuple[Features, tuple[bool, Any, float]]:
    """Return the features of a call with scores of a shape, and its masks with one window and the scale.

    Raises UnsupportedCase if they do not go together.
    """
    causal, window_size = features.one_window(*masks[:2])
    found = features_of(asked, q.device) if asked else _NO_FEATURES
    if asked:
        features.check(found, scores, q.device, causal=causal, window_size=window_size)
    return found, (causal, window_size, plans.given_scale(masks[2], q.shape[-1]))


def _as_rows(result: Any) -> Any:
    """Return out, or out and lse, of a batch of 1 as rows: (total_q, num_heads, head_dim_v), (num_heads, total_q)."""
    if isinstance(result, tuple):
        return result[0][0].transpose(0, 1), result[1][0]
    return result[0].transpose(0, 1)


def _is_eager(*tensors: torch.Tensor) -> bool:
    """Return whether a call runs at once, on plain tensors, so that a rule for eager calls decides it."""
    return not (choice.overridden() or invariant.wanted()) and _runs_now(*tensors)


def _runs_now(*tensors: torch.Tensor) -> bool:
    """Return whether a call is no part of a program that is traced, and has plain tensors."""
    return not torch.compiler.is_compiling() and all(type(x) in dispatch.PLAIN for x in tensors)


def _check_pages(k: torch.Tensor, v: torch.Tensor, block_table: torch.Tensor, longest: int, sequences: int) -> None:
    if k.dim() != 4 or v.shape[:3] != k.shape[:3] or block_table.dim() != 2:
        raise UnsupportedCase("block_table needs k and v as (pages, page_size, heads, head_dim), and two dimensions.")
    if len(block_table) != sequences:
        raise UnsupportedCase(f"block_table has {len(block_table)} rows for {sequences} sequences.")
    if block_table.device != k.device or block_table.dtype not in (torch.int32, torch.int64):
        raise UnsupportedCase(f"block_table must hold integers on {k.device}, where k is.")
    room = block_table.shape[1] * k.shape[1]
    if longest > room or not len(k):
        raise UnsupportedCase(f"The pages of a row of block_table hold {room} keys, fewer than {longest}.")


def _rows_of_pages(
    pages: tuple[torch.Tensor, ...], block_table: torch.Tensor, bounds: SequenceBounds
) -> tuple[list[torch.Tensor], SequenceBounds]:
    """Copy the pages of all sequences into rows, and return where sequences begin and end in them.

    Numbers of pages beyond a sequence's length may be invalid; they are replaced by valid ones.
    """
    room = block_table.shape[1] * pages[0].shape[1]
    rows = [x[block_table.clamp(0, len(x) - 1)].flatten(0, 2) for x in pages]
    starts = torch.arange(len(block_table), dtype=torch.int32, device=block_table.device) * room
    return rows, bounds._replace(starts_k=starts, ends_k=starts + (bounds.ends_k - bounds.starts_k))


def _check_packed(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, asked: dict[str, Any]
) -> None:
    starts = cu_seqlens_q.dim() == 1 and cu_seqlens_q.shape == cu_seqlens_k.shape and len(cu_seqlens_q) > 0
    if q.dim() != 3 or k.dim() != 3 or not starts:
        raise UnsupportedCase(
            "attention_varlen needs (total, heads, head_dim) tensors and as many starts of q as of k."
        )
    if not q.device == cu_seqlens_q.device == cu_seqlens_k.device:
        raise UnsupportedCase(f"attention_varlen needs the starts of sequences on {q.device}, where q is.")
    if asked.get("return_max_logits"):
        raise UnsupportedCase("attention_varlen does not return the largest logits; kernels.attention does.")
    if any(asked.get(name) is not None for name in ("mask", "document_ids", "block_mask")):
        raise UnsupportedCase(
            "attention_varlen does not support mask, document_ids or block_mask; each sequence is a document."
        )


def _check_starts(starts: torch.Tensor, total: int, longest: int) -> None:
    """Refuse starts of sequences that do not go with so many rows."""
    lengths = starts.diff()
    if int(starts[0]) or int(starts[-1]) > total or bool(((lengths < 0) | (lengths > longest)).any()):
        raise UnsupportedCase(f"cu_seqlens {starts.tolist()} do not go with {total} rows and lengths up to {longest}.")


def reads(x: torch.Tensor) -> bool:
    """Return whether the values of a tensor of integers are checked."""
    return x.device.type == "cpu" or os.environ.get("ATTNBENCH_CHECK") == "1"


def learns_by_kernels(found: Features, *tensors: torch.Tensor) -> bool:
    """Return whether kernels of ours compute the gradient of a mask, if one is wanted."""
    return not found.learns_mask or (found.block_mask is None and _runs_now(*tensors))


def features_of(asked: dict[str, Any], device: torch.device) -> Features:
    """Return the features; a seed that is not given is drawn from PyTorch's generator of the device."""
    if unknown := [name for name in asked if name not in _NAMES]:
        takes = ", ".join(("causal", "window_size", "softmax_scale", *_NAMES, *Wanted._fields))
        raise TypeError(f"attention has no argument {' or '.join(unknown)}; it takes {takes}.")
    found = Features(**asked)
    if found.mask is not None and not (found.mask.dtype == torch.bool or found.mask.is_floating_point()):
        raise UnsupportedCase(f"mask must be boolean (True: seen) or of floats to be added, not {found.mask.dtype}.")
    if found.dropout_p and "dropout_seed" not in asked:
        found = replace(found, dropout_seed=torch.randint(1 << 62, (), device=device))
    return found


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, names: Iterable[str]) -> bool:
    """Return whether kernels of ours compute these tensors with features of these names, or "varlen"."""
    from .attention.triton_fa2 import IMPLEMENTATIONS

    declared = IMPLEMENTATIONS[0].reason_against_features(names) is None and q.shape[1] < 1 << 16  # axis of a grid
    found = declared and v.shape[3] <= routes.MAX_HEAD_DIM and v.dtype == q.dtype and routes.takes(q, k, k)
    if not found and invariant.wanted():
        raise invariant.refusal(q, k, v)
    return found


def by_kernels(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    found: Features,
    options: tuple[bool, Any, float],
    bounds: SequenceBounds | None,
    wanted: Wanted = _PLAIN_RESULT,
) -> Any:
    """Compute a call by kernels of ours; options: causal, window_size and the scale.

    A compiled program calls an operator for out alone, and breaks its graph for other results.
    """
    from .attention.triton_fa2.features.call import FeatureCall, attend

    global _uncompiled
    out_alone = wanted == _PLAIN_RESULT and not isinstance(options[1], tuple)
    if torch.compiler.is_compiling() and not out_alone:
        _uncompiled = _uncompiled or torch.compiler.disable(by_kernels)  # not before: it loads torch._dynamo
        return _uncompiled(q, k, v, found, options, bounds, wanted)
    plans.check_inputs("triton_fa2", q, k, v, routes.DTYPES, any_width=True)
    found = found.seeded(q.device)
    if out_alone and (torch.compiler.is_compiling() or not all(type(x) in dispatch.PLAIN for x in (q, k, v))):
        learned = torch.is_grad_enabled() and found.sinks is not None and found.sinks.requires_grad
        op = trained_op if learned or plans.wants_gradients(q, k, v) else forward_op
        return op(q, k, v, *_described(found, bounds, options))[0]
    largest = torch.full((q.shape[1],), float("-inf"), device=q.device) if wanted.return_max_logits else None
    call = FeatureCall(found, *options, "ieee", bounds, max_logits=largest)
    plan = faster(call, q, k, v, wanted)
    if plan and wanted == _PLAIN_RESULT and not found.asked:  # packed, or a window of two widths
        return plans.attend(plan, q, k, v)
    if out_alone:
        return attend(plan or call, q, k, v)
    out, logsumexp = lse.attend(call, q, k, v, plan)
    return wanted.of(out, logsumexp, largest)


def faster(call: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wanted: Wanted = _PLAIN_RESULT) -> Any:
    """Return what computes a FeatureCall faster than its own kernels, see `_on_hopper`; None: nothing does."""
    if wanted == _PLAIN_RESULT and not isinstance(call.window_size, tuple):
        return _on_hopper(call, q, k, v)
    plan = None if wanted.deterministic else _plan_without_features(call, q, k, v)
    return None if wanted.return_max_logits and getattr(plan, "forward_with_more", None) is None else plan


def _plan_without_features(call: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> plans.AttentionPlan | None:
    """Return the plan of the fastest kernels for a FeatureCall without features, where there are any."""
    if call.features.asked or invariant.wanted():
        return None
    if call.bounds is not None:
        return _on_hopper(call, q, k, v)
    if isinstance(call.window_size, tuple):
        narrow = q.dtype.itemsize == 2 and 32 < q.shape[3] <= 64  # then these kernels take 0.5 and 0.7 of the time
        short = sum(features.reach(False, call.window_size, _SHORT_WINDOW)) < _SHORT_WINDOW
        if (narrow and short) or not _runs_now(q, k, v):
            return None
    return routes.plan_of(q, k, v, call.causal, call.window_size, call.scale)


def _on_hopper(call: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Return what computes a FeatureCall by gluon_hopper where that is the faster one; None: nothing does.

    It is the plan of packed sequences, perhaps of their forward alone; with sinks, the only feature, it is as the call.
    """
    bounds, sinks, masks = call.bounds, call.features.asked == ("sinks",), (call.causal, call.window_size, call.scale)
    if isinstance(call.window_size, tuple) or torch.are_deterministic_algorithms_enabled() or invariant.wanted():
        return None
    plain = call.packed and not call.features.asked
    bent = bounds is None and call.features.asked in (("softcap",), ("alibi_slopes",))
    if not (plain or ((bent or (sinks and (bounds is None or call.packed))) and routes.takes(q, k, v))):
        return None
    if bounds is None:
        options = (call.scale, call.window_size, call.causal or not call.window_size)  # no form of full masks alone
        names = {way: routes.name(way, q, k, *options) for way in ("forward", "backward")}
    else:
        names = routes.packed_names(q, k, v, len(bounds.starts_q), masks)
    if names["forward"] != "gluon_hopper" or ((sinks or bent) and names["backward"] != "gluon_hopper"):
        return None
    if bent:
        from .attention.gluon_hopper.scores import with_scores

        return with_scores(call.features, q, k, v, masks)
    if sinks and bounds is None and q.shape[3] == 64 and 0 < call.window_size <= _SHORT_WINDOW:
        return None
    if sinks:
        from .attention.gluon_hopper.sinks import with_sinks

        return with_sinks(call.features, q, k, v, bounds, masks)
    from .attention.gluon_hopper.packed import PackedCall

    plan = PackedCall(bounds, *masks)
    return plan if names["backward"] == "gluon_hopper" else _ForwardOnHopper(plan, call)


class _ForwardOnHopper:
    """Packed sequences whose forward gluon_hopper computes, and whose backward triton_fa2 does."""

    prepare: plans.Prepare | None = None

    def __init__(self, packed: Any, call: Any) -> None:
        self.output, self.forward, self._call = packed.output, packed.forward, call

    def backward(self, *saved: torch.Tensor) -> plans.Tensors:
        """Return dq, dk and dv."""
        return self._call.backward(*saved)[:3]


# Tensors of both operators, without the sinks.
_TENSORS = (*features.TENSORS[1:], "dropout_seed", *BlockMask._fields, *SequenceBounds._fields[:4])


# Arguments of both operators that describe features and bounds: the sinks; the tensors that there are, and a flag for
# each of _TENSORS; longest_q, longest_k and packed of the bounds, causal, window_size; softcap, dropout_p, the scale.
_DESCRIBED = "Tensor? sinks, Tensor[] tensors, bool[] present, SymInt[] sizes, float[] numbers"
_CALL = f"Tensor q, Tensor k, Tensor v, {_DESCRIBED}"


def _described(found: Features, bounds: SequenceBounds | None, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the features, the bounds, and causal, window_size and scale as arguments of an operator."""
    causal, window_size, scale = options
    seed = found.dropout_seed if found.dropout_p else None
    every = [*(getattr(found, name) for name in features.TENSORS[1:]), seed]
    every += [*(found.block_mask or (None,) * 5), *(bounds[:4] if bounds else (None,) * 4)]
    longest = bounds[4:6] if bounds else (0, 0)
    sizes = [*longest, int(bounds is not None and bounds.packed), int(causal), window_size]
    tensors, present = [x for x in every if x is not None], [x is not None for x in every]
    return found.sinks, tensors, present, sizes, [found.softcap, found.dropout_p, scale]


def _call_of(
    sinks: torch.Tensor | None, tensors: list[torch.Tensor], present: list[bool], sizes: list[int], numbers: list[float]
) -> Any:
    """Return the FeatureCall of an operator's arguments."""
    from .attention.triton_fa2.features.call import FeatureCall

    left = iter(tensors)
    named: dict[str, Any] = {name: next(left) if there else None for name, there in zip(_TENSORS, present, strict=True)}
    ends = [named.pop(name) for name in SequenceBounds._fields[:4]]
    blocks = [named.pop(name) for name in BlockMask._fields]
    named["block_mask"] = None if blocks[0] is None else BlockMask(*blocks)
    softcap, dropout_p, scale = numbers
    longest_q, longest_k, packed, causal, window_size = sizes
    bounds = None if ends[0] is None else SequenceBounds._make((*ends, longest_q, longest_k, bool(packed)))
    found = Features(softcap, dropout_p, sinks=sinks, **named)
    return FeatureCall(found, bool(causal), window_size, scale, "ieee", bounds)


def _fake_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float32 else torch.float32
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=lse_dtype)


def _fake_gradients(
    saved: list[torch.Tensor], sinks: torch.Tensor | None, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    of_sinks = saved[0].new_empty(0) if sinks is None else torch.empty_like(sinks)
    dq, dk, dv = (x.new_empty(x.shape) for x in saved[:3])
    return dq, dk, dv, of_sinks


@operator(f"attention_with_features({_CALL}) -> (Tensor, Tensor)", _fake_results)
def forward_op(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *described: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out, contiguous, and lse (batch, num_heads, seqlen_q)."""
    call = _call_of(*described)
    out, lse = (_on_hopper(call, q, k, v) or call).forward(q, k, v)
    return out.contiguous(), lse


@operator(
    f"attention_with_features_backward(Tensor[] saved, {_DESCRIBED}) -> (Tensor, Tensor, Tensor, Tensor)",
    _fake_gradients,
)
def backward_op(saved: list[torch.Tensor], sinks: torch.Tensor | None, *described: Any) -> tuple[torch.Tensor, ...]:
    """Return dq, dk and dv, contiguous, and the gradient of the sinks, empty if there are none.

    saved: q, k, v, out, lse and dout.
    """
    call = _call_of(sinks, *described)
    found = (_on_hopper(call, *saved[:3]) or call).backward(*saved)
    dq, dk, dv = (x.contiguous() for x in found[:3])
    return dq, dk, dv, dq.new_empty(0) if sinks is None else found[3]


trained_op = differentiable(
    f"differentiable_attention_with_features({_CALL}) -> (Tensor, Tensor)", forward_op, backward_op
)
