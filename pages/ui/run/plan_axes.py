"""The axes of a sweep in the form, and as parameters of a link to the form.

A sweep is edited axis by axis. A sustained trace measures one cell, so its form asks for one value of each axis.
"""

from collections.abc import Sequence
from typing import Literal

import streamlit as st

from runner.sweeps import GridAxis, Sweep, axes_of

_LABELS = {"modes": "mode"}
_BIND: Literal["query-params"] = "query-params"


def edited_axes(sweep: Sweep) -> dict[str, str]:
    """Draw every axis; return the changed axes as text."""
    shown = [axis for axis in sweep.AXES if axis.first]
    columns = st.columns(len(shown))
    found = {axis.name: _values(box, sweep, axis) for box, axis in zip(columns, shown, strict=True)}
    more = [axis for axis in sweep.AXES if not axis.first]
    return _changes(sweep, found | _folded(sweep.FOLDED, sweep, more))


def edited_cell(sweep: Sweep, device: str) -> dict[str, str]:
    """Draw the axes of one cell; return a value of each, and the changed batch, heads and window."""
    axes = _of_a_cell(sweep, "one")
    columns = st.columns(len(axes))
    found = {axis.name: _one_value(box, sweep, axis) for box, axis in zip(columns, axes, strict=True)}
    folded = _folded(sweep.FOLDED_OF_A_CELL, sweep, _of_a_cell(sweep, "any"))
    shape = _changes(sweep, folded)
    inputs = {"inputs": "normal"} if "inputs" in axes_of(sweep) else {}
    return {**found, **shape, **inputs, "timings": "eager" if device == "cpu" else "kernel"}


def traced_implementation(sweep: Sweep, found: dict) -> str:
    """Ask for the traced implementation; the default is the first available one that is not the baseline."""
    reasons = {known["name"]: known["reason"] for known in of_level(found, sweep)}
    ready = [name for name in sweep.implementations if name in reasons and not reasons[name]]
    usual = next((name for name in ready if name != sweep.baseline), next(iter(reasons)))
    names, key = list(reasons), _cell_key(sweep, "implementation")
    name = st.selectbox("Implementation", names, index=names.index(usual), key=key, bind=_BIND)
    if reasons[name]:
        st.caption(f":material/info: Will be skipped: {reasons[name]}")
    return name


def of_level(found: dict, sweep: Sweep) -> list[dict]:
    """Return the listed implementations of a sweep's level."""
    return [known for known in found["implementations"] if known.get("level", "op") == sweep.level]


def axes_link(usual: Sweep, wanted: Sweep, axes: Sequence[GridAxis] | None = None) -> dict[str, str | list[str]]:
    """Return the form's parameters for the axes that differ between `wanted` and `usual`."""
    named = {axis.name: axis for axis in axes or usual.AXES}
    texts = _changes(usual, {name: as_text(wanted, name) for name in named})
    return {
        _key(usual, name): words.split(",") * bool(words) if named[name].options else words
        for name, words in texts.items()
    }


def cell_link(usual: Sweep, wanted: Sweep) -> dict[str, str | list[str]] | None:
    """Return the form's parameters for a sweep of one cell; None if it has more."""
    if len(wanted.cases()) * len(wanted.implementations) * len(wanted.modes) != 1:
        return None
    cell = {axis.name: as_text(wanted, axis.name) for axis in _of_a_cell(usual, "one")}
    cell |= {"implementation": wanted.implementations[0]}
    shape = axes_link(usual, wanted, _of_a_cell(usual, "any"))
    return {_cell_key(usual, axis): words for axis, words in cell.items()} | shape


def as_text(sweep: Sweep, axis: str) -> str:
    """Write the values of an axis as in the form; empty if a rule determines them."""
    if axis in sweep.RULES and getattr(sweep, sweep.RULES[axis]):
        return ""
    return ",".join(
        str(value).lower() if isinstance(value, bool) else str(value).replace(",", "+")  # a comma separates values
        for value in getattr(sweep, axis) or ()
    )


def _changes(sweep: Sweep, texts: dict[str, str]) -> dict[str, str]:
    """Return the axes whose text differs from that of the sweep."""
    return {axis: words for axis, words in texts.items() if words != as_text(sweep, axis)}


def _of_a_cell(sweep: Sweep, how: str) -> list[GridAxis]:
    return [axis for axis in sweep.AXES if axis.of_a_cell == how]


def _folded(label: str, sweep: Sweep, axes: Sequence[GridAxis]) -> dict[str, str]:
    """Draw rarely changed axes in an expander, which is open if a link changes one."""
    if not axes:
        return {}
    linked = any(_key(sweep, axis.name) in st.query_params for axis in axes)
    with st.expander(label, expanded=linked, icon=":material/tune:", key=f"more_axes_{sweep.name}_{len(axes)}"):
        columns = st.columns(4)
        return {axis.name: _values(columns[at % 4], sweep, axis) for at, axis in enumerate(axes)}


def _values(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: GridAxis) -> str:
    """Ask for values of an axis: a choice of options, or typed numbers."""
    usual, key = as_text(sweep, axis.name), _key(sweep, axis.name)
    if not axis.options:
        return place.text_input(axis.name, usual, key=key, bind=_BIND, help=axis.about)
    default = usual.split(",") * bool(usual)
    chosen = place.multiselect(axis.name, axis.options, default, key=key, bind=_BIND, select_all=False, help=axis.about)
    return usual if set(chosen) == set(default) else ",".join(chosen)


def _one_value(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: GridAxis) -> str:
    """Ask for one value of an axis; a size can also be typed.

    The default is the largest size, because long rows heat most.
    """
    typed = not axis.options
    options = [str(size) for size in getattr(sweep, axis.name)] if typed else list(axis.options)
    named = as_text(sweep, axis.name).split(",")[0]
    usual = len(options) - 1 if typed else options.index(named) if named else 0
    label, key = _LABELS.get(axis.name, axis.name), _cell_key(sweep, axis.name)
    return place.selectbox(label, options, index=usual, key=key, bind=_BIND, accept_new_options=typed)


def _key(sweep: Sweep, axis: str) -> str:
    return f"edit_{axis}_{sweep.name}"


def _cell_key(sweep: Sweep, axis: str) -> str:
    return f"cell_{axis}_{sweep.name}"
