"""Forms of our kernels as implementations: `triton_fa2[half.forward.64 block_m=64 block_n=128 num_warps=4 ...]`.

A sweep times them with all others, and a rule may name one. A form is a row of a table in `kernels/tuned`, or of
triton_fa2 differs from one in a number; a name of which no table has such a row any more is no implementation.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from . import plans, problem, registry, routes, tables
from .attention.gluon_hopper.configs import padded_head_dims
from .attention.triton_fa2.tuning import BLOCK_DIMS, WALKS
from .registry import AttentionCase, Device, Implementation

TILES = "tiles"  # in place of a name: every form of all others that have any
LEVELS = {"triton_fa2": "op", "gluon_hopper": "op", "triton_split_kv": "decode"}  # of the implementations with forms
_FORWARD, _FULL, _DECODE = "gluon_hopper forward", "gluon_hopper full mask 128", "triton_decode"
_TABLES = {"triton_split_kv": (_DECODE,), "gluon_hopper": (_FORWARD, _FULL)}
Question = tuple[str, tables.Row, Mapping[str, Any]]  # a table, its plain conditions, and what else a problem says


def base_of(name: str) -> str:
    """Return the name of the implementation that a form is of; any other name as it is."""
    return name.partition("[")[0]


def of_case(names: Iterable[str], case: AttentionCase, mode: str, device: Device) -> list[str]:
    """Return the names of the forms that implementations have for a case and mode on a device.

    They are rows of the tables of chips with no more shared memory, and more. A forward has those of the kernels that
    compute it, fwd_bwd those of the backward alone. Nothing is compiled.
    """
    capability = device.compute_capability
    chip = capability[0] * 10 + capability[1] if capability else 0
    if chip not in tables.shared_memory() or case.asked or mode == "bwd":
        return []
    of_level = (registry.get(name, str(case.level)) for name in names if LEVELS.get(name) == case.level)
    able = [each.name for each in of_level if each.reason_against(case, device) is None]
    return [f"{name}[{form.text}]" for name in able for form in _of_case(name, case, mode, chip)]


def _of_case(name: str, case: AttentionCase, mode: str, chip: int) -> Iterable[tables.Form]:
    wide = case.head_dim_v not in (None, case.head_dim)
    if (name != "triton_fa2" and mode == "fwd_bwd") or (name == "triton_fa2" and wide):
        return ()
    if name != "triton_fa2":  # whose problem, rather than the case alone, decides which kernels there are
        limit = tables.shared_memory()[chip]
        return dict.fromkeys(row for asked in _questions(name, case) for row in tables.rows(*asked, limit))
    return _of_problem(problem.of_case(case, problem.FORWARD, problem.EAGER), mode == "fwd", chip)


@cache
def _of_problem(asked: problem.Problem, forward: bool, chip: int) -> tuple[tables.Form, ...]:
    found = deciding(asked, chip)
    if not forward:
        whole = deciding(replace(asked, direction=problem.TRAINING), chip)
        found = {form: others for form, others in whole.items() if form not in found}
    rows = (form for each, others in found.items() for form in (each, *others) if form.result)
    return tuple(dict.fromkeys(form for row in rows if row.asked[0] in WALKS for form in row.near()))


def deciding(asked: problem.Problem, chip: int) -> dict[tables.Form, list[tables.Form]]:
    """Return the forms by which triton_fa2 computes a problem on a chip, each with what could take its place."""
    from .tools.capture import launches_on  # needs Triton

    sizes = ((asked.num_heads, asked.seqlen_q), *[(asked.num_kv_heads, asked.seqlen_k)] * 2)
    like: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, asked.dtype)}
    training = asked.direction == problem.TRAINING
    plans.forget()
    with launches_on(chip), tables.asked() as found:
        inputs = [torch.empty(asked.batch, *size, asked.head_dim, requires_grad=training, **like) for size in sizes]
        masks = {"causal": "causal" in asked.mask, "window_size": asked.window_size}
        out = registry.get("triton_fa2").attention(*inputs, **masks)
        if training:
            torch.autograd.grad(out, inputs, torch.ones_like(out))
    plans.forget()
    tiles = (form for form in found if "block_n" in form.names)
    return {form: form.others(tables.shared_memory()[chip]) for form in tiles}


def _questions(name: str, case: AttentionCase) -> list[Question]:
    """Return which questions decide a case by the tables of an implementation whose rows are its forms."""
    head_dim = case.head_dim or 1
    head_dim_v = case.head_dim_v or head_dim
    if name == "triton_split_kv":
        cache = {"float32": "float32", "float8_e4m3fn": "e4m3"}.get(case.cache_dtype or case.dtype or "", "half")
        widest = case.latent_dim or max(head_dim, head_dim_v)
        return [(_DECODE, (cache, _padded(widest)), {"latent": bool(case.latent_dim)})]
    size, window = padded_head_dims(head_dim, head_dim_v)[0], bool(case.window_size)
    if case.causal or window or size > BLOCK_DIMS[3]:
        facts = {"causal": bool(case.causal), "window": window, "bfloat16": case.dtype == "bfloat16"}
        return [(_FORWARD, (size,), facts | {"head_dim": head_dim})]
    return [(_FULL, (), {"head_dim": head_dim, "whole_rows": head_dim == size})] if size == BLOCK_DIMS[3] else []


def _padded(head_dim: int) -> int:
    return next((size for size in BLOCK_DIMS if size >= head_dim), 0)


@cache
def get(name: str) -> Implementation:
    """Return the form of that name as an implementation. Raises KeyError."""
    base = base_of(name)
    every = _every(base) if base in LEVELS and base != name else ()
    form = next((form for form in every if name == f"{base}[{form.text}]"), None)
    if form is None:
        raise KeyError(name)
    of_base = registry.get(base, LEVELS[base])
    by_plan = partial(_attend, made=plans.PlanCache())
    attend = partial(of_base.attention if of_base.level == "decode" else by_plan, form=form)
    refuses = partial(_refuses, name, form, of_base)
    return replace(of_base, name=name, attention=attend, features=(), colour=None, refuses=refuses)


def named(name: str) -> tuple[tables.Form, ...]:
    """Return the form of an implementation's name; none for one that is no form. Raises KeyError."""
    if "[" not in name:
        return ()
    return (get(name).attention.keywords["form"],)


def _every(base: str) -> Iterator[tables.Form]:
    walks = base == "triton_fa2"
    for family in tables.families():
        for table in family.tables.values():
            if table.name in _TABLES.get(base, ()) or (walks and table.name.split()[0] == base):
                asked = (key for key in table.groups if not walks or key[0] in WALKS)
                rows = (row for key in asked for row in table.forms(key, {}) if row.result)
                yield from (form for row in rows for form in (row.near() if walks else (row,)))


def _refuses(name: str, form: tables.Form, base: Implementation, case: AttentionCase, device: Device) -> str | None:
    if base.name == "triton_fa2":
        fits = form.asked[-1] == _padded(case.head_dim or 1)
    else:
        fits = any(form in tables.rows(*asked) for asked in _questions(base.name, case))
    if not fits:
        return f"{name} is for another head_dim than {case.head_dim}, or for another mask or dtype."
    return base.refuses(case, device) if base.refuses else None


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, form: tables.Form, made: plans.PlanCache[Any], **masks: Any
) -> torch.Tensor:
    """Compute attention by plans that take a form."""
    options = (masks.get("causal", False), masks.get("window_size", 0), masks.get("softmax_scale"))
    name = f"{form.table.split()[0]}[{form.text}]"
    key = plans.plan_key(q, k, v, options)
    plan = made.get(key) or made.remember(key, routes.route_by_name(name, q, k, v, *options))
    return plans.attend(plan, q, k, v)
