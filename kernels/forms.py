"""Forms of our kernels as implementations: `triton_fa2[half.forward.64 block_m=64 block_n=128 num_warps=4 ...]`.

A sweep times them with all others, and a rule may name one. A form is a row of a table in `kernels/tuned`, or differs
from one in a number; a name of which no table has such a row any more is no implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from . import plans, problem, registry, routes, tables
from .attention.triton_fa2.tuning import BLOCK_DIMS, WALKS
from .registry import AttentionCase, Device, Implementation

TILES = "tiles"  # in place of a name: every form of all others that have any


def base_of(name: str) -> str:
    """Return the name of the implementation that a form is of; any other name as it is."""
    return name.partition("[")[0]


def of_case(names: Iterable[str], case: AttentionCase, mode: str, device: Device) -> list[str]:
    """Return the names of the forms that implementations have for a case and mode on a device."""
    listed = (registry.get(name).forms for name in names)
    return [form for forms in listed if forms for form in forms(case, mode, device)]


def of_kernels(name: str, case: AttentionCase, mode: str, device: Device) -> tuple[str, ...]:
    """Return the forms of one of our packages: rows of the tables of chips with no more shared memory, and more.

    A forward has those of the kernels that compute it, fwd_bwd those of the backward alone. Nothing is compiled.
    """
    capability = device.compute_capability
    if capability is None or case.asked or case.head_dim_v not in (None, case.head_dim) or mode == "bwd":
        return ()
    chip = capability[0] * 10 + capability[1]
    return _of_problem(name, problem.of_case(case, problem.FORWARD, problem.EAGER), mode == "fwd", chip)


@cache
def _of_problem(name: str, asked: problem.Problem, forward: bool, chip: int) -> tuple[str, ...]:
    from .tools.forms import forms  # needs Triton

    if chip not in tables.shared_memory():
        return ()
    attend = registry.get(name).attention
    found = forms(asked, chip, attend)
    if not forward:
        whole = forms(replace(asked, direction=problem.TRAINING), chip, attend)
        found = {form: others for form, others in whole.items() if form not in found}
    rows = (form for each, others in found.items() for form in (each, *others) if form.result)
    near = (form for row in rows if row.asked[0] in WALKS for form in row.near())
    return tuple(dict.fromkeys(f"{name}[{form.text}]" for form in near))


@cache
def get(name: str) -> Implementation:
    """Return the form of that name as an implementation. Raises KeyError."""
    base = base_of(name)
    every = _every(base) if base != name else ()
    form = next((form for form in every if name == f"{base}[{form.text}]"), None)
    if form is None:
        raise KeyError(name)
    of_base = registry.get(base)
    refuses = partial(_refuses, name, form, of_base)
    return replace(
        of_base, name=name, attention=_ByForm(name, form), features=(), colour=None, refuses=refuses, forms=None
    )


def named(name: str) -> tuple[tables.Form, ...]:
    """Return the form of an implementation's name; none for one that is no form. Raises KeyError."""
    return (get(name).attention.form,) if "[" in name else ()


def _every(base: str) -> Iterator[tables.Form]:
    for family in tables.families():
        for table in family.tables.values():
            if table.name.split()[0] == base:
                rows = (
                    row for asked in table.groups if asked[0] in WALKS for row in table.forms(asked, {}) if row.result
                )
                yield from (form for row in rows for form in row.near())


def _refuses(name: str, form: tables.Form, base: Implementation, case: AttentionCase, device: Device) -> str | None:
    size = next((size for size in BLOCK_DIMS if size >= (case.head_dim or 1)), 0)
    if form.asked[-1] != size:
        return f"{name} is for another head_dim than {case.head_dim}."
    return base.refuses(case, device) if base.refuses else None


class _ByForm:
    """Attention by plans that take a form."""

    def __init__(self, name: str, form: tables.Form) -> None:
        self.name, self.form = name, form
        self._plans: plans.PlanCache[Any] = plans.PlanCache()

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **masks: Any) -> torch.Tensor:
        options = (masks.get("causal", False), masks.get("window_size", 0), masks.get("softmax_scale"))
        key = plans.plan_key(q, k, v, options)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans.remember(key, routes.route_by_name(self.name, q, k, v, *options))
        return plans.attend(plan, q, k, v)
