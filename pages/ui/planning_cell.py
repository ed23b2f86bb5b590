"""The one cell that a sustained trace is taken of, as the form asks for it and as a link to the form fills it in."""

from __future__ import annotations

import streamlit as st

from pages.ui import planning_axes
from runner.sweeps import Sweep

AXES = ("seqlen", "head_dim", "dtype", "causal", "modes")
_LABELS = {"modes": "mode"}
_BIND = "query-params"


def edited(sweep: Sweep, device: str) -> dict[str, str]:
    """One value of each axis, and those of batch, heads and window that differ from the sweep's own."""
    columns = st.columns(len(AXES))
    found = {axis: _one(column, sweep, axis) for column, axis in zip(columns, AXES, strict=True)}
    timing = "eager" if device == "cpu" else "kernel"
    return {**found, **planning_axes.shape(sweep), "inputs": "normal", "timings": timing}


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
    cell = {axis: planning_axes.as_text(wanted, axis) for axis in AXES} | {"implementation": wanted.implementations[0]}
    return {_key(usual, axis): text for axis, text in cell.items()} | planning_axes.link(
        usual, wanted, planning_axes.SHAPE
    )


def _one(place: st.delta_generator.DeltaGenerator, sweep: Sweep, axis: str) -> str:
    """A select box of the sweep's values, or of all that are possible; a size can be typed too. Long rows heat most."""
    typed = axis in planning_axes.SIZES
    options = [str(size) for size in getattr(sweep, axis)] if typed else list(planning_axes.CHOICES[axis])
    usual = len(options) - 1 if typed else options.index(planning_axes.as_text(sweep, axis).split(",")[0])
    label = _LABELS.get(axis, axis)
    return place.selectbox(label, options, index=usual, key=_key(sweep, axis), bind=_BIND, accept_new_options=typed)


def _key(sweep: Sweep, axis: str) -> str:
    return f"cell_{axis}_{sweep.name}"
