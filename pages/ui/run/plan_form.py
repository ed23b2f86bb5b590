"""Choosing a sweep, seeing its plan, starting it. What the page sends is checked again before anything starts."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.run import cluster_form, plan_axes, under_way
from pages.ui.shell import access
from results.levels import level_of
from runner import launch, sweeps
from runner.launch import LaunchError, SweepRequest

_PLANNED = "planned_request"


def what_is_here() -> dict | None:
    """Return devices, implementations and sweeps of this machine; None, and the reason on the page, if that fails."""
    try:
        return _listing()
    except LaunchError as error:
        st.error(str(error), icon=":material/error:")
        if st.button("Look again", icon=":material/refresh:"):
            _listing.clear()
            st.rerun()
        return None


def explain() -> None:
    """Draw what each sweep measures, beside each other."""
    with st.expander("What each sweep measures", icon=":material/help:", key="sweeps_explained"):
        rows = [
            {
                "sweep": sweep.name,
                "what": sweep.description,
                "cases": len(sweep.cases()),
                "level": sweep.level,
                "seqlen or context": _range(sweep, level_of(sweep.level).columns.field),
                "head_dim": _range(sweep, "head_dim"),
                "dtype": ", ".join(sweep.dtype),
                "implementations": len(sweep.implementations),
                "modes": ", ".join(sweep.modes),
                "baseline": sweep.baseline,
            }
            for sweep in sweeps.SWEEPS.values()
        ]
        columns = {"what": st.column_config.TextColumn("what", width="large")}
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Every sweep and what it measures", column_config=columns)
        st.caption("Sizes, dtypes and implementations can be changed below; the plan then says what that costs.")


def _range(sweep: sweeps.Sweep, field: str) -> str:
    """Return from where to where a size of its cases goes; nothing where no case has it."""
    sizes = {size for case in sweep.cases() if (size := getattr(case, field)) is not None}
    if not sizes:
        return ""
    low, high = text.size(min(sizes)), text.size(max(sizes))
    return low if low == high else f"{low} to {high}"


def ask_for(found: dict) -> SweepRequest | None:
    """Return the request as it stands in the form; None, and the reason on the page, if it makes no sweep."""
    devices = {device["id"]: device for device in found["devices"]}
    names_of = {name: known["name"] for name, known in devices.items()}
    if found.get("ray"):
        names_of[cluster_form.DEVICE] = "Several GPUs or hosts, through Ray"
    names = [sweep["name"] for sweep in found["sweeps"]]
    with st.container(border=True):
        left, middle, right = st.columns(3)
        device = left.selectbox("Device", list(names_of), key="device", bind="query-params")
        left.caption(names_of[device])
        name = middle.selectbox("Sweep", names, key="sweep", bind="query-params")
        sweep = sweeps.get(name)
        middle.caption(sweep.description)
        protocol = right.segmented_control(
            "Protocol",
            list(launch.PROTOCOLS),
            default="quick",
            required=True,
            key="protocol",
            bind="query-params",
            help="quick: one round of short sampling, for a first look. standard: three rounds of longer sampling, "
            "interleaved, for numbers that two runs can be compared by. sustained: one cell, half a minute of "
            "back-to-back calls, for what remains of the first second.",
        )
        if protocol == "sustained":
            changes = plan_axes.edited_cell(sweep, device)
            implementations = (plan_axes.traced_implementation(sweep, found),)
        else:
            changes = plan_axes.edited_axes(sweep)
            implementations = _implementations(found, sweep, name)
        cluster = None
        if device == cluster_form.DEVICE:
            device, cluster = cluster_form.chosen()
    request = SweepRequest(
        sweep=name,
        device=device,
        implementations=implementations,
        changes=changes,
        protocol=protocol,
        cluster=cluster,
    )
    problems = problems_of(request, found)
    for problem in problems:
        st.error(problem, icon=":material/error:")
    return None if problems else request


def link_to_traces() -> None:
    """Link to the page of the traces, where this machine has made one."""
    if any((status.protocol, status.state) == ("sustained", "finished") for status in launch.runs()):
        st.page_link("pages/sustained.py", label="Traces of sustained sweeps", icon=":material/thermostat:")


def problems_of(request: SweepRequest, found: dict) -> list[str]:
    """Return what speaks against a request, in sentences; nothing from the browser is trusted."""
    problems, level = [], "op"
    try:
        level = launch.checked(request).level
    except LaunchError as error:
        problems.append(str(error))
    devices = [device["id"] for device in found["devices"]]
    known = [i["name"] for i in found["implementations"] if i.get("level", "op") == level]
    if request.device not in devices and not request.cluster:
        problems.append(f"Device {request.device!r} is not here. Available: {', '.join(devices)}.")
    unknown = sorted(set(request.implementations or ()) - set(known))
    if unknown:
        problems.append(f"Unknown implementation {', '.join(unknown)}. Available: {', '.join(known)}.")
    return problems


def plan_and_start(request: SweepRequest, found: dict, allowed: bool) -> None:
    """Draw the button that plans, the plan it made, and the button that starts exactly that plan."""
    if request.cluster:
        cluster_form.show(request)
        _start_button(request, found, allowed)
        return
    remember, icon = {_PLANNED: request}, ":material/checklist:"
    st.button("Show plan", icon=icon, key="show_plan", on_click=st.session_state.update, args=(remember,))
    if st.session_state.get(_PLANNED) != request:
        st.caption("The plan says what will be measured, what will be skipped and why, and how long it will take.")
        return
    try:
        plan = _plan(request)
    except LaunchError as error:
        st.error(str(error), icon=":material/error:")
        return
    _show(plan)
    _start_button(request, found, allowed and plan["cell_count"] > plan["skipped_count"])


def _start_button(request: SweepRequest, found: dict, allowed: bool) -> None:
    st.button(
        "Start sweep",
        type="primary",
        icon=":material/play_arrow:",
        key="start",
        disabled=not allowed,
        on_click=_start,
        args=(request, found),
        help=None if allowed else "There is nothing to measure, or running sweeps is off, see above.",
    )


def _start(request: SweepRequest, found: dict) -> None:
    """Check everything once more, then start."""
    problems = problems_of(request, found)
    if not access.allowed(st.session_state.get("run_token")):
        problems.append("Running sweeps is off on this server.")
    if problems:
        st.session_state[under_way.PROBLEM] = " ".join(problems)
        return
    try:
        launch.start(request)
        st.session_state.pop(_PLANNED, None)
    except LaunchError as error:
        st.session_state[under_way.PROBLEM] = str(error)


@st.cache_data(ttl=60, max_entries=1, show_spinner="Asking which devices and implementations are here")
def _listing() -> dict:
    return launch.listing()


@st.cache_data(ttl=600, max_entries=16, show_spinner="Planning")
def _plan(request: SweepRequest) -> dict:
    return launch.plan(request)


def _implementations(found: dict, sweep: sweeps.Sweep, name: str) -> tuple[str, ...] | None:
    listed = plan_axes.of_level(found, sweep)
    known = [implementation["name"] for implementation in listed]
    default = [implementation for implementation in sweep.implementations if implementation in known]
    key = f"edit_implementations_{name}"
    chosen = st.multiselect("Implementations", known, default=default, key=key, bind="query-params", select_all=False)
    reasons = {i["name"]: i["reason"] for i in listed if i.get("reason")}
    against = sorted({reasons[implementation] for implementation in chosen if implementation in reasons})
    if against:
        st.caption(f":material/info: Will be skipped: {' '.join(against)}")
    return None if chosen == default else tuple(chosen)


def _show(plan: dict) -> None:
    """Draw counts, time, what is skipped and why."""
    cells = pd.DataFrame(plan["cells"])
    with st.grid(3, min_column_width=150):
        st.metric("Cells to measure", plan["cell_count"] - plan["skipped_count"], border=True)
        st.metric("Skipped", plan["skipped_count"], border=True)
        st.metric("Estimated time", text.duration(plan["seconds"]), border=True)
    skipped = cells.dropna(subset=["reason"])
    if len(skipped):
        reasons = skipped.groupby("reason").agg(cells=("reason", "size")).reset_index()
        st.dataframe(
            reasons.sort_values("cells", ascending=False)[["cells", "reason"]],
            hide_index=True,
            alt="Why cells are skipped",
            column_config={
                "cells": st.column_config.NumberColumn("cells", width=80),
                "reason": st.column_config.TextColumn("skipped because", width="large"),
            },
        )
    with st.expander(f"Every cell of the plan: {messages.counted(len(cells), 'cell')}", icon=":material/table_rows:"):
        levels = [level_of(name) for name in cells["level"].unique()] if "level" in cells else [level_of("op")]
        sizes = dict.fromkeys(axis.field for level in levels for axis in (level.columns, level.rows))
        columns = ["implementation", "mode", "dtype", *sizes, "seconds", "memory_mb", "reason"]
        st.dataframe(cells[columns], hide_index=True, alt="Every cell of the plan")
