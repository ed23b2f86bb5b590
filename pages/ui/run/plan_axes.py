"""The axes of a sweep as the form edits them, and as a link to the form fills them in.

A sweep can be edited axis by axis. A sustained trace is of one cell, so its form asks for one value of each axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from results.records import DTYPES, INPUTS, MODES, TIMINGS
from runner.sweeps import AXES, Sweep

CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "causal": ("true", "false"),
    "modes": MODES[:3],
    "timings": TIMINGS,
    "inputs": INPUTS,
}
SHAPE = ("batch", "num_heads", "num_kv_heads", "window_size")
SIZES = ("seqlen", "head_dim", *SHAPE, "context", "heads", "query_tokens")
FIRST = {"op": ("seqlen", "head_dim", "dtype"), "decode": ("context", "batch", "heads")}  # the rest is folded away
OF_A_CELL = {
    "op": ("seqlen", "head_dim", "dtype", "causal", "modes"),
    "decode": ("context", "batch", "heads", "head_dim", "dtype"),
}
SHAPE_OF_A_CELL = {"op": SHAPE, "decode": ("query_tokens", "window_size")}
_FOLDED = {"op": "Mask, heads, modes, timings and inputs", "decode": "Head_dim, dtype, window and timings"}
_FOLDED_OF_A_CELL = {"op": "Batch, heads and window", "decode": "Query tokens and window"}
_RULES = {"batch": "tokens", "num_heads": "hidden"}  # what a sweep can have in place of the axis
_LABELS = {"modes": "mode"}
_HELP = {
    "batch": "Empty: as many as the sweep's number of tokens allows at that seqlen.",
    "num_heads": "Empty: as many as the sweep's hidden size allows at that head_dim.",
    "num_kv_heads": "Empty: as many as num_heads.",
    "context": "Tokens in each sequence's cache.",
    "heads": "Query heads over key heads, such as 64/8.",
    "window_size": "Keys that a query sees to its left; 0: all of them.",
    "causal": "true: a query sees no later key.",
    "timings": "kernel: on the device alone; eager: a plain call. None: only errors are taken.",
    "inputs": "What the tensors hold; other than normal for errors, not for speed.",
}
_BIND = "query-params"


def edited_axes(sweep: Sweep) -> dict[str, str]:
    """Draw every axis, and return what differs from the sweep's own, as text by axis."""
    columns = st.columns([2, 1, 2])
    found = {axis: _values(box, sweep, axis) for box, axis in zip(columns, FIRST[sweep.level], strict=True)}
    more = [axis for axis in axes_of(sweep) if axis not in found]
    return _changes(sweep, found | _folded(_FOLDED[sweep.level], sweep, more))


def axes_of(sweep: Sweep) -> tuple[str, ...]:
    """Return the axes that a sweep of its level has, in the form's order."""
    return tuple(axis for axis in (*SIZES, *CHOICES) if axis in AXES[sweep.level])


def edited_cell(sweep: Sweep, device: str) -> dict[str, str]:
    """Draw the axes of one cell, and return a value of each and what differs in batch, heads and window."""
    axes = OF_A_CELL[sweep.level]
    columns = st.columns(len(axes))
    found = {axis: _one_value(box, sweep, axis) for box, axis in zip(columns, axes, strict=True)}
    folded = _folded(_FOLDED_OF_A_CELL[sweep.level], sweep, SHAPE_OF_A_CELL[sweep.level])
    shape = _changes(sweep, folded)
    inputs = {"inputs": "normal"} if "inputs" in AXES[sweep.level] else {}
    return {**found, **shape, **inputs, "timings": "eager" if device == "cpu" else "kernel"}


def traced_implementation(sweep: Sweep, found: dict) -> str:
    """Ask for the implementation that is traced; the default is the first that runs here beside the baseline."""
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


def axes_link(usual: Sweep, wanted: Sweep, axes: Sequence[str] | None = None) -> dict[str, str | list[str]]:
    """Return the form's parameters for the axes in which `wanted` differs from the sweep of its name."""
    texts = _changes(usual, {axis: as_text(wanted, axis) for axis in axes or axes_of(usual)})
    return {
        _key(usual, axis): words.split(",") * bool(words) if axis in CHOICES else words for axis, words in texts.items()
    }


def cell_link(usual: Sweep, wanted: Sweep) -> dict[str, str | list[str]] | None:
    """Return the form's parameters for a sweep of one cell; None if it has more."""
    if len(wanted.cases()) * len(wanted.implementations) * len(wanted.modes) != 1:
        return None
    cell = {axis: as_text(wanted, axis) for axis in OF_A_CELL[usual.level]}
    cell |= {"implementation": wanted.implementations[0]}
    shape = axes_link(usual, wanted, SHAPE_OF_A_CELL[usual.level])
    return {_cell_key(usual, axis): words for axis, words in cell.items()} | shape


def as_text(sweep: Sweep, axis: str) -> str:
    """Write the values of an axis as they are typed; nothing where a rule gives them."""
    if axis in _RULES and getattr(sweep, _RULES[axis]):
        return ""
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in getattr(sweep, axis))


def _changes(sweep: Sweep, texts: dict[str, str]) -> dict[str, str]:
    """Return the axes whose text differs from the sweep's own."""
    return {axis: words for axis, words in texts.items() if words != as_text(sweep, axis)}


def _folded(label: str, sweep: Sweep, axes: Sequence[str]) -> dict[str, str]:
    """Draw axes that few change, folded away unless a link changes one."""
    linked = any(_key(sweep, axis) in st.query_params for axis in axes)
    with st.expander(label, expanded=linked, icon=":material/tune:", key=f"more_axes_{sweep.name}_{len(axes)}"):
        columns = st.columns(4)
        return {axis: _values(columns[at % 4], sweep, axis) for at, axis in enumerate(axes)}


def _values(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: str) -> str:
    """Ask for any number of values of an axis: chosen where they are few, typed where they are numbers."""
    usual, key, about = as_text(sweep, axis), _key(sweep, axis), _help(sweep, axis)
    if axis not in CHOICES:
        return place.text_input(axis, usual, key=key, bind=_BIND, help=about)
    default = usual.split(",") * bool(usual)
    chosen = place.multiselect(axis, CHOICES[axis], default, key=key, bind=_BIND, select_all=False, help=about)
    return usual if set(chosen) == set(default) else ",".join(chosen)


def _one_value(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: str) -> str:
    """Ask for one of the sweep's values, or of all that are possible; a size can be typed too.

    The default is the largest size, because long rows heat most.
    """
    typed = axis in SIZES
    options = [str(size) for size in getattr(sweep, axis)] if typed else list(CHOICES[axis])
    usual = len(options) - 1 if typed else options.index(as_text(sweep, axis).split(",")[0])
    label, key = _LABELS.get(axis, axis), _cell_key(sweep, axis)
    return place.selectbox(label, options, index=usual, key=key, bind=_BIND, accept_new_options=typed)


def _help(sweep: Sweep, axis: str) -> str | None:
    """Return what an axis means; of a batch that no rule gives, there is nothing to say."""
    return None if axis in _RULES and sweep.level != "op" else _HELP.get(axis)


def _key(sweep: Sweep, axis: str) -> str:
    return f"edit_{axis}_{sweep.name}"


def _cell_key(sweep: Sweep, axis: str) -> str:
    return f"cell_{axis}_{sweep.name}"
