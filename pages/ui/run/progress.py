"""The sweeps of this machine: following those that run, cancelling, resuming, and what became of the others."""

from __future__ import annotations

import time
import uuid

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, maps, text
from pages.ui.runs import listing
from pages.ui.shell import access
from pages.ui.shell.data import ask, store
from results.files import journal
from results.levels import Level, level_of
from results.query import pages
from results.recommend import winners
from results.slice import Filters
from runner import launch
from runner.launch import LaunchError

ACTIVE_S, IDLE_S = 2, 15  # an idle tab still looks, or it would never learn of a sweep started elsewhere
_PACES_S = (2, 5, 10, 20, 60)  # all tabs together look about every other second, however many there are
_SEEN_S = 90  # a tab that has not looked for so long is closed
_HISTORY = 20


def follow(allowed: bool) -> None:
    """Draw the running sweeps, again every few seconds without the rest of the page."""
    problem = st.session_state.pop("start_problem", None)
    if problem:
        st.error(problem, icon=":material/error:")
    before = _running()
    pace = _pace(before)
    st.fragment(_follow, run_every=pace)(before, pace, allowed)


def history(allowed: bool) -> None:
    """Draw the latest sweeps and how they ended; those that were cut off can be resumed."""
    statuses = [status for status in launch.runs() if status.total or status.state != "finished"][:_HISTORY]
    if not statuses:
        st.caption("None yet. A sweep started from the command line shows up here too.")
        return
    for status in statuses:
        with st.container(horizontal=True, vertical_alignment="center"):
            line = f"{listing.state_badge(status.state)} `{status.run_id}` {status.done} of {status.total} cells"
            st.markdown(f"{line}{' · ' + status.message if status.message else ''}", width="stretch")
            if status.state in ("crashed", "cancelled", "failed"):
                st.button(
                    "Resume",
                    icon=":material/resume:",
                    key=f"resume_{status.run_id}",
                    on_click=_resume,
                    args=(status.run_id,),
                    disabled=not allowed,
                )
    st.page_link("pages/runs.py", label="All runs, logs and downloads", icon=":material/history:")


def _running() -> tuple[str, ...]:
    return tuple(status.run_id for status in launch.runs() if status.state == "running")


def _pace(running: tuple[str, ...]) -> int:
    """Return the seconds between two looks of this tab: more where more tabs look, to spare a sweep's host."""
    now, tabs = time.monotonic(), _tabs()
    tabs[st.session_state.setdefault("tab", uuid.uuid4().hex)] = now
    count = sum(now - seen < _SEEN_S for seen in list(tabs.values()))
    pace = next((pace for pace in _PACES_S if pace >= 2 * count), _PACES_S[-1])
    return pace if running else max(IDLE_S, pace)


@st.cache_resource(show_spinner=False)
def _tabs() -> dict[str, float]:
    """Return when each tab of this process last looked."""
    return {}


def _follow(before: tuple[str, ...], pace: int, allowed: bool) -> None:
    running = _running()
    if running != before or _pace(running) != pace:
        st.rerun()
    for run_id in running:
        with st.container(border=True):
            _progress(run_id, allowed)
            _arriving(run_id, pace)
    if not running:
        st.caption("No sweep is running on this machine.")


def _progress(run_id: str, allowed: bool) -> None:
    status = launch.status(run_id)
    share = status.done / status.total if status.total else 0.0
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"{listing.state_badge(status.state)} **{run_id}**", width="stretch")
        with st.popover("Cancel", icon=":material/stop_circle:", disabled=not allowed):
            st.markdown("Stop after the cell it is at? What was measured is kept, and the sweep can be resumed.")
            st.button("Yes, cancel it", key=f"cancel_{run_id}", type="primary", on_click=_cancel, args=(run_id,))
    left = f"about {text.duration(status.eta_s)} left" if status.eta_s is not None else "estimating"
    st.progress(min(1.0, share), text=f"{status.done} of {status.total} cells · {left}")
    now = (status.current or "preparing").split("; ")  # one of each card
    at = f"Now: {now[0]}" if len(now) == 1 else "Now, by card:\n" + "".join(f"\n- {each}" for each in now)
    st.caption(f"{at}{' · ' + status.message if status.message else ''}")
    if journal.RunFolder(journal.home() / "runs" / run_id).cancel_requested():
        st.info("Cancelling: it stops after the cell it is at.", icon=":material/hourglass_top:")
    with st.expander("Log", icon=":material/terminal:", key=f"log_{run_id}"):
        st.code(listing.log_tail(run_id) or "nothing yet", language=None, height=200, wrap_lines=True)


def _arriving(run_id: str, pace: int) -> None:
    """Draw the fastest implementation of each cell as far as it is known; the rest waits."""
    store(not_older_than_s=max(ACTIVE_S, pace / 4))  # tabs that look seldom need not each read the files anew
    arrived = ask(pages.run_progress, run_id)
    if arrived.empty:
        st.caption(_no_time_yet(run_id))
        return
    timing = "kernel" if "kernel" in set(arrived["timing"]) else str(arrived["timing"].iloc[0])
    sweep = journal.RunFolder(journal.home() / "runs" / run_id).run().sweep
    level = level_of(sweep.get("level"))
    modes = [mode for mode in level.modes if mode in set(arrived["mode"])]
    mode = st.segmented_control("Mode", modes, default=modes[0], required=True, key=f"live_mode_{run_id}")
    chosen = Filters(run=(run_id,), level=level.name, mode=mode, timing=timing, baseline=sweep.get("baseline"))
    won = _with_waiting(level, cells.winner_cells(level, ask(winners.winners, chosen)), sweep)
    names = sorted(won["winner"].dropna().unique())
    look = maps.winners(charts.colours(names), names)
    alt = f"Fastest implementation so far by {level.columns.label} and {level.rows.label}"
    maps.show(level, won.to_dict("records"), look, f"live_{run_id}", alt, selectable=False)
    count = f"{arrived['numbers'].sum()} latencies so far"
    st.caption(f"{count} · {timing} time · {mode} · numbers are the speedup over {chosen.baseline}.")


def _no_time_yet(run_id: str) -> str:
    """Say why a sweep has no map yet, or never will."""
    run = journal.RunFolder(journal.home() / "runs" / run_id).run()
    if (run.protocol or "").startswith("sustained"):
        return "A trace is calls back to back for half a minute; its numbers come at its end."
    if not run.sweep.get("timings", True):
        return "This sweep times nothing: it takes errors against float64, which the page Accuracy shows as they come."
    return "No time yet. The first ones come after compiling and the check against the oracle."


def _with_waiting(level: Level, won: pd.DataFrame, sweep: dict) -> pd.DataFrame:
    """Return the cells of the whole sweep, those that are still to come marked as waiting."""
    axes = [*cells.place_columns(level)]
    sizes = [sweep.get(name, ()) for name in ("dtype", level.columns.label, level.rows.label)]  # as a sweep names them
    planned = pd.MultiIndex.from_product(sizes, names=axes).to_frame(index=False)
    whole = planned.merge(won, on=axes, how="outer")
    arrived = whole["contenders"].fillna(0) + [len(f) if hasattr(f, "__len__") else 0 for f in whole["failed"]]
    waiting = whole["winner"].isna() & (arrived < len(sweep.get("implementations", ())))
    whole.loc[waiting, "failure"] = "waiting"
    whole.loc[waiting, "hover"] = "waiting for its turn"
    whole.loc[waiting, "status"] = None
    return whole


def _cancel(run_id: str) -> None:
    _act(launch.cancel, run_id)


def _resume(run_id: str) -> None:
    _act(launch.resume, run_id)


def _act(action: object, run_id: str) -> None:
    """Call `action` if this session may run sweeps; what goes wrong is said at the next drawing."""
    if not access.allowed(st.session_state.get("run_token")):
        st.session_state["start_problem"] = "Running sweeps is off on this server."
        return
    try:
        action(run_id)
    except (LaunchError, journal.JournalError) as error:
        st.session_state["start_problem"] = str(error)
