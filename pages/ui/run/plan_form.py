"""Choosing a sweep, seeing its plan, starting it. What the page sends is checked again before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.ui.draw import messages, text
from pages.ui.run import background, cluster_form, plan_axes, plan_map, under_way
from results.capabilities import CAPABILITIES, declares
from results.levels import level_of
from runner import launch, sweeps
from runner.launch import LaunchError, SweepRequest

_FIRST = "cuda"  # a device that nobody chose; replaced by the machine's first before anything starts
_ABOUT_PROTOCOLS = (
    "quick: one round of short sampling, for a first look. standard: three rounds of longer sampling, interleaved, for "
    "numbers to keep and compare between runs. sustained: one shape, half a minute of back-to-back calls, which shows "
    "the throughput that a warm GPU keeps."
)
_LISTING = "listing"
_LISTING_S, _PLAN_S = 60.0, 600.0  # how long such answers are kept


def new_sweep(allowed: bool, form: Callable[[dict | None], SweepRequest | None]) -> None:
    """Draw a form, the button that runs its sweep, and the plan. The button is there before devices are known."""
    try:
        asked = background.ask(_LISTING, lambda: launch.listing(), keep_s=_LISTING_S)
        found = background.answer(asked)
    except LaunchError as error:
        st.error(text.plain(str(error)), icon=":material/error:")
        st.button("Look again", icon=":material/refresh:", on_click=background.forget, args=(_LISTING,))
        return
    request = form(found)
    if found is None:
        background.draw_again_once(asked)
    if request is None:
        return
    place = st.container(horizontal=True, vertical_alignment="center")
    if request.cluster:
        _run_button(place, request, asked, allowed)
        cluster_form.show(request)
        return
    with st.container():
        plan, why = _plan_of(request, found)
    unsure = found is None and request.protocol == "sustained"  # whose timing depends on the device
    nothing = plan is not None and plan["cell_count"] == plan["skipped_count"]
    _run_button(place, request, asked, allowed and not nothing and not unsure)
    place.caption(why or _said_of(plan))
    if plan is None:
        plan_map.show(launch.checked(request), request.implementations)
    else:
        plan_map.show_plan(launch.checked(request), plan)


def explain() -> None:
    """Draw what each sweep measures, beside each other."""
    with st.expander("What each sweep measures", icon=":material/help:", key="sweeps_explained"):
        rows = [
            {
                "sweep": sweep.name,
                "what": sweep.description,
                "shapes": len(sweep.cases()),
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


def ask_for(found: dict | None) -> SweepRequest | None:
    """Return the request as it stands in the form; None, and the reason on the page, if it makes no sweep.

    While devices and implementations are not `found` yet, those of the address stand, or the first there will be.
    """
    with st.container(border=True):
        left, middle, right = st.columns(3)
        device = _device(left, found)
        name = middle.selectbox("Sweep", list(sweeps.SWEEPS), key="sweep", bind="query-params")
        sweep = sweeps.get(name)
        middle.caption(sweep.description)
        with right:
            protocol = _protocol()
        if protocol == "sustained":
            changes = plan_axes.edited_cell(sweep, device)
            implementations = (plan_axes.traced_implementation(sweep, found),) if found else sweep.implementations[:1]
        else:
            changes = plan_axes.edited_axes(sweep)
            implementations = _implementations(found, sweep, name)
        cluster = None
        if found and device == cluster_form.DEVICE:
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
        st.error(text.plain(problem), icon=":material/error:")
    return None if problems else request


def _protocol() -> str:
    return st.segmented_control(
        "Protocol",
        list(launch.PROTOCOLS),
        default="quick",
        required=True,
        key="protocol",
        bind="query-params",
        help=_ABOUT_PROTOCOLS,
    )


def link_to_traces() -> None:
    """Link to the page of the traces, where this machine has made one."""
    if any((status.protocol, status.state) == ("sustained", "finished") for status in launch.runs()):
        st.page_link("pages/sustained.py", label="Traces of sustained sweeps", icon=":material/thermostat:")


def problems_of(request: SweepRequest, found: dict | None) -> list[str]:
    """Return what speaks against a request, in sentences; nothing from the browser is trusted.

    Of a machine that is not `found` yet only what no machine could run.
    """
    problems, level = [], "op"
    try:
        level = launch.checked(request).level
    except LaunchError as error:
        problems.append(str(error))
    if found is None:
        return problems
    devices = [device["id"] for device in found["devices"]]
    known = [i["name"] for i in found["implementations"] if i.get("level", "op") == level]
    if request.device not in devices and not request.cluster:
        problems.append(f"Device {request.device!r} is not here. Available: {', '.join(devices)}.")
    unknown = sorted(set(request.implementations or ()) - set(known))
    if unknown:
        problems.append(f"Unknown implementation {', '.join(unknown)}. Available: {', '.join(known)}.")
    return problems


def _run_button(place: DeltaGenerator, request: SweepRequest, asked: Future, allowed: bool) -> None:
    place.button(
        "Run sweep",
        type="primary",
        icon=":material/play_arrow:",
        key="start",
        disabled=not allowed,
        on_click=_start,
        args=(request, asked),
        help=None if allowed else "There is nothing to measure, or running sweeps is off, see above.",
    )


def _start(request: SweepRequest, asked: Future) -> None:
    """Check everything once more, then start; a device that nobody chose is the first of this machine."""

    def start() -> str:
        found = asked.result()
        wanted = replace(request, device=found["devices"][0]["id"]) if request.device == _FIRST else request
        if problems := problems_of(wanted, found):
            raise LaunchError(" ".join(problems))
        return launch.start(wanted)

    under_way.act("sweep " + request.sweep, start)


def _plan_of(request: SweepRequest, found: dict | None) -> tuple[dict | None, str]:
    """Return the plan of a request, or why there is none yet; while a sweep runs only a click makes one."""
    if found is None:
        return None, "Looking for devices and implementations."
    wanted = st.session_state.get("plan_wanted") == request
    if launch.running() and not wanted:
        remember = {"plan_wanted": request}
        st.button("Show plan", icon=":material/checklist:", on_click=st.session_state.update, args=(remember,))
        return None, "A sweep is running. Planning another takes processor time from it."
    try:
        asked = background.ask(request_key(request), lambda: launch.plan(request), keep_s=_PLAN_S)
        plan = background.answer(asked)
    except LaunchError as error:
        background.forget(request_key(request))
        return None, f":material/error: {text.plain(str(error))}"
    if plan is None:
        background.draw_again_once(asked)
    return plan, "" if plan else "Planning: what can run here, and how long it takes."


def request_key(request: SweepRequest) -> str:
    """Return what tells requests apart."""
    return repr(request)


def _said_of(plan: dict) -> str:
    """Say in a line what the plan measures, how long that takes, and how many combinations it skips."""
    measured, skipped = plan["cell_count"] - plan["skipped_count"], plan["skipped_count"]
    rest = f" {skipped:,} cannot run here, each with its reason below." if skipped else ""
    return f"Measures {messages.counted(measured, 'number')} in about {text.duration(plan['seconds'])}.{rest}"


def _device(place: DeltaGenerator, found: dict | None) -> str:
    """Ask for the device; while they are looked up it is the one of the address, or the first there will be."""
    if found is None:
        linked = st.query_params.get("device")
        place.text_input("Device", linked or "looking for devices", disabled=True)
        return linked or _FIRST
    names_of = {device["id"]: device["name"] for device in found["devices"]}
    if found.get("ray"):
        names_of[cluster_form.DEVICE] = "Several GPUs or hosts, through Ray"
    device = place.selectbox("Device", list(names_of), key="device", bind="query-params")
    place.caption(text.plain(names_of[device]))
    return device


def _implementations(found: dict | None, sweep: sweeps.Sweep, name: str) -> tuple[str, ...] | None:
    if found is None:
        linked = st.query_params.get_all(f"edit_implementations_{name}")
        names = linked or list(sweep.implementations)
        st.text_input("Implementations", ", ".join(names), disabled=True)
        return tuple(linked) or None
    usual = [each["name"] for each in plan_axes.of_level(found, sweep) if each["name"] in sweep.implementations]
    listed, features = _with_features(plan_axes.of_level(found, sweep), name)
    known = [implementation["name"] for implementation in listed]
    default = [implementation for implementation in sweep.implementations if implementation in known]
    default = default or known * bool(features)
    key = "_".join(("edit_implementations", name, *features))
    chosen = st.multiselect("Implementations", known, default=default, key=key, bind="query-params", select_all=False)
    reasons = {i["name"]: i["reason"] for i in listed if i.get("reason")}
    against = sorted({reasons[implementation] for implementation in chosen if implementation in reasons})
    if against:
        st.caption(f":material/info: Will be skipped: {' '.join(against)}")
    return None if sorted(chosen) == sorted(usual) else tuple(chosen)


def _with_features(listed: list[dict], name: str) -> tuple[list[dict], list[str]]:
    """Ask for features; return the implementations that declare all that are chosen, and their names."""
    said = [each.get("capabilities", {}) for each in listed]
    offered = {words: name for name, words in CAPABILITIES.items() if any(declares(each, name) for each in said)}
    chosen = st.multiselect(
        "Features",
        list(offered),
        key=f"features_{name}",
        bind="query-params",
        placeholder="Any",
        select_all=False,
        help="Only implementations that declare all of these are offered below.",
    )
    features = [offered[words] for words in chosen]
    pairs = zip(listed, said, strict=True)
    return [each for each, able in pairs if all(declares(able, one) for one in features)], features
