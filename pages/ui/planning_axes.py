"""The axes of a sweep as the form edits them and as a link to the form fills them in."""

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


def edited(sweep: Sweep) -> dict[str, str]:
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
    linked = any(_key(sweep, axis) in st.query_params for axis in axes)
    with st.expander(label, expanded=linked, icon=":material/tune:", key=f"more_axes_{sweep.name}_{len(axes)}"):
        columns = st.columns(4)
        return {axis: _axis(columns[at % 4], sweep, axis) for at, axis in enumerate(axes)}


def as_text(sweep: Sweep, axis: str) -> str:
    """The values of an axis as they are typed; nothing where a rule gives them."""
    if axis in _RULES and getattr(sweep, _RULES[axis]):
        return ""
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in getattr(sweep, axis))


def link(usual: Sweep, wanted: Sweep, axes: Sequence[str] = (*SIZES, *CHOICES)) -> dict[str, str | list[str]]:
    """What the address of the form says of the axes in which a sweep differs from the one of that name."""
    texts = {axis: as_text(wanted, axis) for axis in axes}
    return {
        _key(usual, axis): text.split(",") * bool(text) if axis in CHOICES else text
        for axis, text in texts.items()
        if text != as_text(usual, axis)
    }


def _axis(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: str) -> str:
    usual, key, about = as_text(sweep, axis), _key(sweep, axis), _HELP.get(axis)
    if axis not in CHOICES:
        return place.text_input(axis, usual, key=key, bind="query-params", help=about)
    default = usual.split(",") * bool(usual)
    chosen = place.multiselect(
        axis, CHOICES[axis], default=default, key=key, bind="query-params", select_all=False, help=about
    )
    return usual if set(chosen) == set(default) else ",".join(chosen)


def _key(sweep: Sweep, axis: str) -> str:
    return f"edit_{axis}_{sweep.name}"
