"""Links to Run sweep with one shape filled in."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import streamlit as st

from pages.ui.draw import text
from pages.ui.run import plan_axes
from results.batches import is_spec
from results.records import CASE_FIELDS, Case, RecordError
from runner import sweeps
from runner.sweeps import Sweep, SweepError
from runner.sweeps.given import KINDS, completed, unstated

_Axes = dict[str, Callable[[Case], object]]


def _fields(*names: str) -> _Axes:
    """Return axes with the names of fields of the case."""
    return {name: attrgetter(name) for name in names}


_CAUSAL: _Axes = {"causal": lambda case: None if case.causal is None else str(case.causal).lower()}
_HEADS: _Axes = {"heads": lambda case: case.num_heads and f"{case.num_heads}/{case.num_kv_heads or case.num_heads}"}
_QUERIES: _Axes = {"seqlen": lambda case: case.seqlen_q}


def _of_equal(name: str) -> Callable[[Case], object]:
    """Return the value of a field that a batch spec replaces."""
    return lambda case: None if is_spec(case.lengths) else getattr(case, name)


_DECODE: _Axes = {
    "batch_spec": lambda case: case.lengths if is_spec(case.lengths) else None,
    "context": _of_equal("seqlen_k"),
    "query_tokens": _of_equal("seqlen_q"),
    "batch": _of_equal("batch"),
    "lengths": _of_equal("lengths"),
    "cache_dtype": lambda case: None if case.cache_dtype == case.dtype else case.cache_dtype,
}
# By level: the sweeps that can be edited to one shape, and the value of each of their axes.
_SWEEPS: dict[str, tuple[tuple[str, ...], _Axes]] = {
    "op": (
        ("fa_paper",),
        _QUERIES
        | _CAUSAL
        | _fields("head_dim", "batch", "num_heads", "num_kv_heads", "window_size", "dtype", "inputs"),
    ),
    "decode": (("decode",), _DECODE | _HEADS | _fields("head_dim", "dtype", "window_size", "page_size", "latent_dim")),
    "layer": (
        ("attention_layers", "flashtile"),
        _QUERIES | _CAUSAL | _HEADS | _fields("subject", "batch", "head_dim", "latent_dim", "dtype"),
    ),
}


def link(
    case: Case | Mapping[str, Any],
    *,
    mode: str | None = None,
    implementations: Sequence[str] = (),
    protocol: str = "standard",
) -> dict[str, str | list[str]] | str:
    """Return the parameters of Run sweep that measure one shape, or the reason why there are none.

    `case` is a Case, or a row of a table with its fields. The defaults are all modes of the level and the
    implementations of its sweep.
    """
    try:
        wanted = _whole(case if isinstance(case, Case) else _case_of(case))
        if isinstance(wanted, str):
            return wanted
        names, axes = _SWEEPS[str(wanted.level)]
        texts = {axis: str(value) for axis, of in axes.items() if (value := of(wanted)) is not None}
        sweep = next(filter(None, (_edited(name, texts, mode, wanted) for name in names)), None)
    except (RecordError, SweepError, ValueError) as error:
        return str(error)
    if sweep is None:
        return f"Sweep {' or '.join(names)} has no axis for it."
    chosen = {f"edit_implementations_{sweep.name}": list(implementations)} if implementations else {}
    return {"sweep": sweep.name, "protocol": protocol} | plan_axes.axes_link(sweeps.get(sweep.name), sweep) | chosen


def show(label: str, case: Case | Mapping[str, Any], **how: Any) -> None:
    """Draw the link to Run sweep with one shape filled in, or the reason; `how` holds arguments of `link`."""
    found = link(case, **how)
    if isinstance(found, str):
        st.caption(f":material/info: This shape cannot be measured from here: {text.plain(found)}")
    else:
        st.page_link("pages/run_sweep.py", label=label, icon=":material/play_circle:", query_params=found)


def _edited(name: str, texts: dict[str, str], mode: str | None, wanted: Case) -> Sweep | None:
    """Return the sweep with replaced axes; None if the result is not exactly the wanted shape."""
    usual = sweeps.get(name)
    modes = {"modes": mode} if mode and "modes" in sweeps.axes_of(usual) else {}
    sweep = sweeps.override(usual, texts | modes)
    return sweep if [*map(_identity, sweep.cases())] == [_identity(wanted)] else None


def _whole(case: Case) -> Case | str:
    """Return the case with absent fields completed, or the reason why it cannot be measured."""
    if case.level not in _SWEEPS:
        return f"Level {case.level or 'not stated'} has its own sweeps."
    if case.latent_dim or case.level not in KINDS:
        return case
    if missing := unstated(case):
        return f"It does not state {', '.join(missing)}."
    found = completed(case)
    return f"It is one of {found}." if isinstance(found, str) else found


def _identity(case: Case) -> tuple[object, ...]:
    """Return the identity of a shape; absent numbers equal 0, and absent inputs equal normal ones."""
    plain = {name: getattr(case, name) or None for name in CASE_FIELDS if name != "head_dim_v"}
    return tuple((plain | {"inputs": case.inputs or "normal"}).values())


def _case_of(row: Mapping[str, Any]) -> Case:
    """Return the case of a row of a table, in which missing values are NaN and whole numbers may be floats."""
    found: dict[str, Any] = {name: None if text.missing(row.get(name)) else row[name] for name in CASE_FIELDS}
    whole = {name for name, value in found.items() if isinstance(value, float) and value.is_integer()}
    found |= {name: int(found[name]) for name in whole}
    return Case(**found)
