"""The form of a sweep, its plan, and its start. Every request is checked again before it starts."""

import html
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.ui.draw import maps, messages, tables, text
from pages.ui.filters import select
from pages.ui.run import background, cluster_form, plan_axes, under_way
from pages.ui.shell import access
from results.capabilities import CAPABILITIES, declares
from results.files import journal
from results.grouping import grouped
from results.levels import Level, level_of
from runner import launch, sweeps
from runner.launch import LaunchError, SweepRequest
from runner.sweeps import Sweep, SweepError

_FIRST = "cuda"  # the default before devices are known; replaced by the first device at the start
_ABOUT_PROTOCOLS = " ".join(f"{name}: {about}." for name, about in text.WORDS["protocols"].items())
_LISTING = "listing"
_LISTING_S, _PLAN_S = 60.0, 600.0  # how long such answers are kept
_PER_CELL = 12  # number of skipped implementations in the tooltip of a cell
_MAX_CELLS = 2000  # the largest map that is drawn


def new_sweep(allowed: bool, form: Callable[[dict | None], SweepRequest | None]) -> None:
    """Draw a form, the button that runs its sweep, and the plan. The button is drawn before devices are known."""
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
        plan, why = _plan_of(request, found) if allowed else (None, access.OFF)  # each plan is a process
    unsure = found is None and request.protocol == "sustained"  # its timing depends on the device
    nothing = plan is not None and plan["cell_count"] == plan["skipped_count"]
    _run_button(place, request, asked, allowed and not nothing and not unsure)
    if plan is None:
        place.caption(why)
        show_shapes(launch.checked(request), request.implementations)
    else:
        skipped, seconds = plan["skipped_count"], text.duration(plan["seconds"])
        rest = f" {skipped:,} cannot run here, each with its reason below." if skipped else ""
        count = messages.counted(plan["cell_count"] - skipped, "combination")
        place.caption(f"Measures {count} in about {seconds}.{rest}")
        show_plan(launch.checked(request), plan)


def explain() -> None:
    """Draw a table of all sweeps."""
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
        tables.grid(pd.DataFrame(rows), "Every sweep and what it measures", tables.declared("sweeps"))
        st.caption("Sizes, dtypes and implementations can be changed below; the plan then says what that costs.")


def _range(sweep: sweeps.Sweep, field: str) -> str:
    """Return the range of a size over the cases of a sweep; empty if no case has it."""
    sizes = {size for case in sweep.cases() if (size := getattr(case, field)) is not None}
    if not sizes:
        return ""
    low, high = text.size(min(sizes)), text.size(max(sizes))
    return low if low == high else f"{low} to {high}"


def ask_for(found: dict | None) -> SweepRequest | None:
    """Return the request of the form, or draw the reason and return None if it makes no sweep.

    Before devices and implementations are `found`, those of the address are used, or the first ones.
    """
    with st.container(border=True):
        left, middle, right = st.columns(3)
        device = _device(left, found)
        name = select.named_choice("Sweep", "sweep", list(sweeps.SWEEPS), draw=middle.selectbox)
        sweep = sweeps.get(name)
        middle.caption(sweep.description)
        with right:
            protocol = select.segments("Protocol", "protocol", list(launch.PROTOCOLS), "quick", help=_ABOUT_PROTOCOLS)
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
        sweep=name, device=device, implementations=implementations, changes=changes, protocol=protocol, cluster=cluster
    )
    return _sound(request, found)


def _sound(request: SweepRequest, found: dict | None) -> SweepRequest | None:
    """Return a request, or draw its problems and return None."""
    problems = problems_of(request, found)
    for problem in problems:
        st.error(text.plain(problem), icon=":material/error:")
    return None if problems else request


def link_to_traces() -> None:
    """Link to the page of traces if this machine has made one."""
    if any((status.protocol, status.state) == ("sustained", "finished") for status in launch.runs()):
        messages.link("sustained", "Traces of sustained sweeps", "thermostat")


def problems_of(request: SweepRequest, found: dict | None) -> list[str]:
    """Return the problems of a request in sentences; nothing from the browser is trusted.

    Before the machine is `found`, return only problems of every machine.
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
    help = None if allowed else "There is nothing to measure, or running sweeps is off, see above."
    select.widget("start", place=place, disabled=not allowed, on_click=_start, args=(request, asked), help=help)


def _start(request: SweepRequest, asked: Future) -> None:
    """Check everything again, then start; the default device is the first of this machine."""

    def start() -> str:
        found = asked.result()
        wanted = replace(request, device=found["devices"][0]["id"]) if request.device == _FIRST else request
        if problems := problems_of(wanted, found):
            raise LaunchError(" ".join(problems))
        return launch.start(wanted)

    under_way.act("sweep " + request.sweep, start)


def _plan_of(request: SweepRequest, found: dict | None) -> tuple[dict | None, str]:
    """Return the plan of a request, or the reason why there is none; during a sweep a plan needs a click."""
    if found is None:
        return None, "Looking for devices and implementations."
    wanted = st.session_state.get("plan_wanted") == request
    if launch.running() and not wanted:
        remember = {"plan_wanted": request}
        st.button("Show plan", icon=":material/checklist:", on_click=st.session_state.update, args=(remember,))
        return None, "A sweep is running. Planning another takes processor time from it."
    try:
        asked = background.ask(repr(request), lambda: launch.plan(request), keep_s=_PLAN_S)
        plan = background.answer(asked)
    except LaunchError as error:
        background.forget(repr(request))
        return None, f":material/error: {text.plain(str(error))}"
    if plan is None:
        background.draw_again_once(asked)
    return plan, "" if plan else "Planning: what can run here, and how long it takes."


def _device(place: DeltaGenerator, found: dict | None, **look: Any) -> str:
    """Ask for the device; before devices are known, return that of the address, or the default."""
    if found is None:
        linked = st.query_params.get("device")
        place.text_input("Device", linked or "looking for devices", disabled=True)
        return linked or _FIRST
    names_of = {device["id"]: device["name"] for device in found["devices"]}
    if found.get("ray") and not look:
        names_of[cluster_form.DEVICE] = "Several GPUs or hosts, through Ray"
    device = place.selectbox("Device", list(names_of), **look or {"key": "device", "bind": "query-params"})
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
    chosen = select.bound(st.multiselect, "Implementations", key, known, default=default, select_all=False)
    reasons = {i["name"]: i["reason"] for i in listed if i.get("reason")}
    against = sorted({reasons[implementation] for implementation in chosen if implementation in reasons})
    if against:
        st.caption(f":material/info: Will be skipped: {' '.join(against)}")
    return None if sorted(chosen) == sorted(usual) else tuple(chosen)


def _with_features(listed: list[dict], name: str) -> tuple[list[dict], list[str]]:
    """Ask for features; return the implementations that declare all of them, and the features."""
    said = [each.get("capabilities", {}) for each in listed]
    offered = {words: name for name, words in CAPABILITIES.items() if any(declares(each, name) for each in said)}
    chosen = select.widget("features", list(offered), key=f"features_{name}")
    features = [offered[words] for words in chosen]
    pairs = zip(listed, said, strict=True)
    return [each for each, able in pairs if all(declares(able, one) for one in features)], features


def ask_for_given(found: dict | None, run_id: str) -> SweepRequest | None:
    """Return a request for the cases of a run, or draw the reason and return None if it makes no sweep."""
    if found is None:
        st.caption("Looking for devices and implementations.")
        return None
    try:
        sweep, left = launch.cases_of(run_id, journal.home())
    except SweepError as error:
        st.error(text.plain(str(error)), icon=":material/error:")
        return None
    with st.container(border=True):
        st.markdown(f"{len(sweep.given):,} shapes of **{text.plain(run_id)}**, modes {', '.join(sweep.modes)}")
        for sentence in left:
            st.caption(f":material/do_not_disturb_on: Left out: {text.plain(sentence)}")
        left_side, right = st.columns(2)
        device = _device(left_side, found, key="given_device")
        presets = [name for name in launch.PROTOCOLS if name != "sustained"]
        protocol = right.segmented_control("Protocol", presets, default="quick", required=True, key="given_protocol")
        known = [each["name"] for each in plan_axes.of_level(found, sweep)]
        usual = [name for name in sweep.implementations if name in known]
        names = st.multiselect("Implementations", known, default=usual, key="given_implementations", select_all=False)
        leave: dict[str, Any] = {"on_click": st.query_params.pop, "args": ("cases_of", None)}
        st.button("Choose another sweep", icon=":material/close:", key="leave_given", **leave)
    request = SweepRequest(
        sweep=sweep.name, device=device, implementations=tuple(names), protocol=protocol, cases_of=run_id
    )
    return _sound(request, found)


def show_shapes(sweep: Sweep, implementations: tuple[str, ...] | None) -> None:
    """Draw the map of a sweep without a plan."""
    names = implementations or sweep.implementations
    cells = [
        asdict(case) | {"implementation": name, "mode": mode, "reason": None}
        for case in sweep.cases()
        for name in names
        for mode in sweep.modes
    ]
    _map(level_of(sweep.level), cells, planned=False)


def show_plan(sweep: Sweep, plan: Mapping[str, Any]) -> None:
    """Draw the map of a plan, the reasons for skipped combinations, and every combination as a table."""
    level, cells = level_of(sweep.level), plan["cells"]
    _map(level, cells, planned=True)
    reasons = Counter(cell["reason"] for cell in cells if cell["reason"])
    if reasons:
        rows = [{"skipped": count, "because": reason} for reason, count in reasons.most_common()]
        tables.grid(pd.DataFrame(rows), "Reasons for skipped combinations", tables.declared("skipped"))
    label = f"Every combination of the plan: {messages.counted(len(cells), 'row')}"
    alt = "Every combination of the plan"
    messages.folded(label, "every_planned", lambda: tables.grid(_table(level, cells), alt))


def _map(level: Level, cells: Iterable[Mapping[str, Any]], *, planned: bool) -> None:
    """Draw the map that the results will fill, without numbers."""
    fields = "dtype", level.columns.field, level.rows.field
    places = grouped(cells, lambda cell: tuple(map(cell.get, fields)))
    if len(places) > _MAX_CELLS:
        st.caption(f"{len(places):,} shapes are more than a map shows.")
        return
    alt = f"Shapes to be measured by {level.columns.label} and {level.rows.label}"
    rows = [_row(level, place, of_place, planned) for place, of_place in places.items()]
    maps.show(level, rows, maps.winners({}, []), "plan_map", alt)


def _row(level: Level, place: tuple, cells: list[Mapping[str, Any]], planned: bool) -> dict[str, Any]:
    dtype, column, row = place
    measured = sum(not cell["reason"] for cell in cells)
    skipped = dict.fromkeys(f"{cell['implementation']}: {cell['reason']}" for cell in cells if cell["reason"])
    lines = [f"{messages.counted(measured, 'number')} to measure"] if measured or not planned else []
    lines += list(skipped)[:_PER_CELL]
    return {
        "dtype": dtype,
        level.columns.column: column,
        level.rows.column: row,
        "shown": None,
        "status": None if measured else "skipped",
        "failure": f"{'' if planned else 'up to '}{measured} to do" if measured else "skipped",
        "hover": "<br>".join(html.escape(line) for line in lines),
    }


def _table(level: Level, cells: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    fields = ["implementation", "mode", "dtype", level.columns.field, level.rows.field]
    table = pd.DataFrame(cells)[[*fields, "seconds", "memory_mb", "reason"]]
    axes = {axis.field: axis.label for axis in (level.columns, level.rows)}
    return table.rename(columns=axes | text.WORDS["plan_columns"])
