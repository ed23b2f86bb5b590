"""The one cell that a sustained trace is taken of, as the form asks for it and as a link to the form fills it in.

The axes of a sweep as the form edits them and as a link to the form fills them in.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from results.records import DTYPES, INPUTS, MODES, TIMINGS
from runner.sweeps import Sweep

CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "causal": ("true", "false"),
    "modes": MODES[:3],
    "timings": TIMINGS,
    "inputs": INPUTS,
}
SHAPE = ("batch", "num_heads", "num_kv_heads", "window_size")
SIZES = ("seqlen", "head_dim", *SHAPE)
_RULES = {"batch": "tokens", "num_heads": "hidden"}  # what a sweep can have in place of the axis
_HELP = {
    "batch": "Empty: as many as the sweep's number of tokens allows at that seqlen.",
    "num_heads": "Empty: as many as the sweep's hidden size allows at that head_dim.",
    "num_kv_heads": "Empty: as many as num_heads.",
    "window_size": "Keys that a query sees to its left; 0: all of them.",
    "causal": "true: a query sees no later key.",
    "timings": "kernel: on the device alone; eager: a plain call. None: only errors are taken.",
    "inputs": "What the tensors hold; other than normal for errors, not for speed.",
}


def edited_axes(sweep: Sweep) -> dict[str, str]:
    """What is typed and chosen in the form, of the axes that differ from the sweep's own."""
    seqlen, head_dim, dtype = st.columns([2, 1, 2])
    found = {"seqlen": _axis(seqlen, sweep, "seqlen"), "head_dim": _axis(head_dim, sweep, "head_dim")}
    found["dtype"] = _axis(dtype, sweep, "dtype")
    more = [axis for axis in (*SIZES, *CHOICES) if axis not in found]
    found |= _more("Mask, heads, modes, timings and inputs", sweep, more)
    return {axis: text for axis, text in found.items() if text != as_text(sweep, axis)}


def shape(sweep: Sweep) -> dict[str, str]:
    """The same of batch, heads and window alone."""
    found = _more("Batch, heads and window", sweep, SHAPE)
    return {axis: text for axis, text in found.items() if text != as_text(sweep, axis)}


def _more(label: str, sweep: Sweep, axes: Sequence[str]) -> dict[str, str]:
    """What few change, folded away unless a link changes it."""
    linked = any(_axis_key(sweep, axis) in st.query_params for axis in axes)
    with st.expander(label, expanded=linked, icon=":material/tune:", key=f"more_axes_{sweep.name}_{len(axes)}"):
        columns = st.columns(4)
        return {axis: _axis(columns[at % 4], sweep, axis) for at, axis in enumerate(axes)}


def as_text(sweep: Sweep, axis: str) -> str:
    """The values of an axis as they are typed; nothing where a rule gives them."""
    if axis in _RULES and getattr(sweep, _RULES[axis]):
        return ""
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in getattr(sweep, axis))


def axes_link(usual: Sweep, wanted: Sweep, axes: Sequence[str] = (*SIZES, *CHOICES)) -> dict[str, str | list[str]]:
    """What the address of the form says of the axes in which a sweep differs from the one of that name."""
    texts = {axis: as_text(wanted, axis) for axis in axes}
    return {
        _axis_key(usual, axis): text.split(",") * bool(text) if axis in CHOICES else text
        for axis, text in texts.items()
        if text != as_text(usual, axis)
    }


def _axis(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: str) -> str:
    usual, key, about = as_text(sweep, axis), _axis_key(sweep, axis), _HELP.get(axis)
    if axis not in CHOICES:
        return place.text_input(axis, usual, key=key, bind="query-params", help=about)
    default = usual.split(",") * bool(usual)
    chosen = place.multiselect(
        axis, CHOICES[axis], default=default, key=key, bind="query-params", select_all=False, help=about
    )
    return usual if set(chosen) == set(default) else ",".join(chosen)


def _axis_key(sweep: Sweep, axis: str) -> str:
    return f"edit_{axis}_{sweep.name}"


AXES = ("seqlen", "head_dim", "dtype", "causal", "modes")
_LABELS = {"modes": "mode"}
_BIND = "query-params"


def edited(sweep: Sweep, device: str) -> dict[str, str]:
    """One value of each axis, and those of batch, heads and window that differ from the sweep's own."""
    columns = st.columns(len(AXES))
    found = {axis: _one(column, sweep, axis) for column, axis in zip(columns, AXES, strict=True)}
    timing = "eager" if device == "cpu" else "kernel"
    return {**found, **shape(sweep), "inputs": "normal", "timings": timing}


def implementation(sweep: Sweep, found: dict) -> str:
    """The implementation that is traced; the first that runs here, the baseline apart, stands there."""
    reasons = {known["name"]: known["reason"] for known in found["implementations"]}
    ready = [name for name in sweep.implementations if name in reasons and not reasons[name]]
    usual = next((name for name in ready if name != sweep.baseline), next(iter(reasons)))
    names = list(reasons)
    name = st.selectbox(
        "Implementation", names, index=names.index(usual), key=_key(sweep, "implementation"), bind=_BIND
    )
    if reasons[name]:
        st.caption(f":material/info: Will be skipped: {reasons[name]}")
    return name


def link(usual: Sweep, wanted: Sweep) -> dict[str, str | list[str]] | None:
    """What the address of the form says of a sweep of one cell; None if it has more."""
    if len(wanted.cases()) * len(wanted.implementations) * len(wanted.modes) != 1:
        return None
    cell = {axis: as_text(wanted, axis) for axis in AXES} | {"implementation": wanted.implementations[0]}
    return {_key(usual, axis): text for axis, text in cell.items()} | axes_link(usual, wanted, SHAPE)


def _one(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: str) -> str:
    """A select box of the sweep's values, or of all that are possible; a size can be typed too. Long rows heat most."""
    typed = axis in SIZES
    options = [str(size) for size in getattr(sweep, axis)] if typed else list(CHOICES[axis])
    usual = len(options) - 1 if typed else options.index(as_text(sweep, axis).split(",")[0])
    label = _LABELS.get(axis, axis)
    return place.selectbox(label, options, index=usual, key=_key(sweep, axis), bind=_BIND, accept_new_options=typed)


def _key(sweep: Sweep, axis: str) -> str:
    return f"cell_{axis}_{sweep.name}"
