"""The sweeps of this machine: the progress of running ones, and the history."""

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, colours, maps, messages, text
from pages.ui.run import under_way
from pages.ui.runs import listing
from pages.ui.shell import access
from pages.ui.shell.data import ask, store
from results.files import journal
from results.levels import Level, level_of
from results.query import pages
from results.recommend import winners
from results.slice import Filters
from runner import launch
from runner.launch import LaunchError, RunStatus

_ACTIVE_S = 2
_HISTORY = 20
_FOLLOWED = "runs_followed"  # runs that this tab saw running
_PAGES = {"op": "overview", "decode": "decode", "layer": "layers", "model": "models"}
_ENDED = text.WORDS["sweep_ends"]


def follow() -> None:
    """Draw the running sweeps, redrawn every few seconds, and sweeps that have just ended."""
    under_way.draw_starting()
    problem = st.session_state.pop(under_way.PROBLEM, None)
    if problem:
        st.error(text.plain(problem), icon=":material/error:")
    before = _running()
    for run_id in st.session_state.setdefault(_FOLLOWED, {}):
        if run_id not in before:
            show_end(run_id)
    st.session_state[_FOLLOWED] |= dict.fromkeys(before)
    pace = under_way.pace(bool(before))
    st.fragment(_follow, run_every=pace)(before, pace)


def history(allowed: bool) -> None:
    """Draw the latest sweeps, their ends and links to their results; interrupted ones can be resumed."""
    statuses = [status for status in launch.runs() if status.total or status.state != "finished"][:_HISTORY]
    if not statuses:
        st.caption("None yet. A sweep started from the command line shows up here too.")
        return
    starting = under_way.starting()
    for status in statuses:
        begun = status.run_id == starting
        with st.container(horizontal=True, vertical_alignment="center"):
            badge = listing.state_badge("starting" if begun else status.state)
            total = messages.counted(status.total, "combination")
            moving = begun or status.state == "running"  # its count is above and changes; this list is not redrawn
            said = "" if begun or not status.message else f" · {text.plain(status.message)}"
            count = total if moving else f"{status.done} of {total}"
            st.markdown(f"{badge} `{status.run_id}` {count}{said}", width="stretch")
            if status.done and status.run_id not in st.session_state[_FOLLOWED]:  # else a card above links there
                link_to_results(status.run_id)
            if status.state in under_way.RESUMABLE and not begun:
                under_way.resume_button(status.run_id, disabled=not allowed)
    messages.link("runs", "All runs, logs and downloads", "history")


def _running() -> tuple[str, ...]:
    return tuple(status.run_id for status in launch.running())


def _follow(before: tuple[str, ...], pace: int) -> None:
    running = _running()
    if running != before or under_way.pace(bool(running)) != pace:
        st.rerun()
    for run_id in running:
        with st.container(border=True):
            _progress(run_id)
            _arriving(run_id, pace)
    if not running and not under_way.starting():
        st.caption("No sweep is running on this machine.")


def _progress(run_id: str) -> None:
    status = launch.status(run_id)
    share = status.done / status.total if status.total else 0.0
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"{listing.state_badge(status.state)} **{run_id}**", width="stretch")
        under_way.cancel_button(run_id, f"cancel_{run_id}")
    st.progress(
        min(1.0, share),
        text=f"{status.done} of {messages.counted(status.total, 'combination')} · {under_way.left(status)}",
    )
    now = (status.current or "preparing").split("; ")  # one entry for each card
    at = f"Now: {now[0]}" if len(now) == 1 else "Now, by card:\n" + "".join(f"\n- {each}" for each in now)
    st.caption(f"{at}{' · ' + status.message if status.message else ''}")
    if journal.RunFolder(journal.home() / "runs" / run_id).cancel_requested():
        st.caption("Cancelling: it stops after the current shape, and can be resumed.")
    with st.expander("Log", icon=":material/terminal:", key=f"log_{run_id}"):
        st.code(listing.log_tail(run_id) or "nothing yet", language=None, height=200, wrap_lines=True)


def _arriving(run_id: str, pace: int) -> None:
    """Draw the fastest implementation of each cell so far; other cells are waiting."""
    store(not_older_than_s=max(_ACTIVE_S, pace / 4))  # tabs that look rarely share one reading of the files
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
    look = maps.winners(colours.palette(names), names)
    alt = f"Fastest implementation so far by {level.columns.label} and {level.rows.label}"
    maps.show(level, won.to_dict("records"), look, f"live_{run_id}", alt)
    count = f"{arrived['numbers'].sum()} latencies so far"
    st.caption(
        f"{count} · {timing} time · {mode} · below each name: the time of the next best, relative to the fastest."
    )


def _no_time_yet(run_id: str) -> str:
    """Return the reason why a sweep has no map yet, or never has one."""
    run = journal.RunFolder(journal.home() / "runs" / run_id).run()
    if (run.protocol or "").startswith("sustained"):
        return "A trace is calls back to back for half a minute; its numbers come at its end."
    if not run.sweep.get("timings", True):
        return "This sweep times nothing: it takes errors against float64, which the page Accuracy shows as they come."
    return "No timings yet: kernels are being compiled and checked against the reference."


def _with_waiting(level: Level, won: pd.DataFrame, sweep: dict) -> pd.DataFrame:
    """Return the cells of the whole sweep; cells without results are marked as waiting."""
    axes = [*cells.place_columns(level)]
    named = ("dtype", level.columns.label, level.rows.label)  # the names of the axes in a sweep
    sizes = [sweep.get(name, ()) for name in named]
    planned = pd.MultiIndex.from_product(sizes, names=axes).to_frame(index=False)
    whole = planned.merge(won, on=axes, how="outer")
    arrived = whole["contenders"].fillna(0) + [len(f) if hasattr(f, "__len__") else 0 for f in whole["failed"]]
    waiting = whole["winner"].isna() & (arrived < len(sweep.get("implementations", ())))
    whole.loc[waiting, "failure"] = "waiting"
    whole.loc[waiting, "hover"] = "waiting for its turn"
    whole.loc[waiting, "status"] = None
    return whole


def show_end(run_id: str) -> None:
    """Draw the result of a run and the links to its views."""
    try:
        status = launch.status(run_id)
    except LaunchError:  # deleted in the meantime
        return
    store()
    runs = ask(pages.runs)
    found = runs[runs["run_id"] == run_id]
    with st.container(border=True):
        of_cards = f" ({text.duration(status.cards_s)} of its cards)" if status.cards_s else ""
        after = f" after {text.duration(status.lasted_s)}{of_cards}" if status.lasted_s is not None else ""
        numbers = listing.counts(found.iloc[0]) if len(found) else "no number"
        said = [f"{_ENDED.get(status.state, 'The sweep has ended')}{after}: {numbers}."]
        said += ["It can be resumed."] * (status.state in under_way.RESUMABLE)
        said += [_fastest(status, found.iloc[0])] if len(found) else []
        said += [text.plain(status.message or "")] * (status.state not in ("finished", "cancelled"))
        head = f"{listing.state_badge(status.state)} **{text.plain(run_id)}**"
        st.markdown(f"{head}  \n{' '.join(filter(None, said))}")
        with st.container(horizontal=True):
            if status.state in under_way.RESUMABLE:
                under_way.resume_button(run_id, disabled=not access.here(), key="resume_ended")
            if len(found) and found.iloc[0]["numbers"]:
                _links(status, found.iloc[0], runs)


def _fastest(status: RunStatus, run: pd.Series) -> str:
    """Name the implementation that won most shapes of the first timed mode; empty if there is none."""
    arrived, sweep = ask(pages.run_progress, status.run_id), listing.sweep_of(run)
    if arrived.empty:
        return ""
    level = level_of(sweep.get("level"))
    mode = next(mode for mode in (*level.modes, arrived["mode"].iloc[0]) if mode in set(arrived["mode"]))
    timing = "kernel" if "kernel" in set(arrived["timing"]) else str(arrived["timing"].iloc[0])
    whose = Filters(run=(status.run_id,), level=level.name, mode=mode, timing=timing, baseline=sweep.get("baseline"))
    won = ask(winners.winners, whose)["winner"].dropna()
    if won.empty:
        return ""
    name, count = next(iter(won.value_counts().items()))
    words = text.MODE_WORDS.get(mode, mode)
    return f"Fastest {words}: {text.plain(name)}, in {count} of {messages.counted(len(won), 'shape')}."


def _links(status: RunStatus, run: pd.Series, runs: pd.DataFrame) -> None:
    """Link to the map of the run, to its table and downloads, and to the comparison with the one before."""
    link_to_results(status.run_id)
    messages.link("runs", "Table and downloads", "table_rows", run_id=status.run_id)
    if before := _before(run, runs):
        label = "Compare with the run before"
        messages.link("compare", label, "compare_arrows", first=before, second=status.run_id)


def link_to_results(run_id: str) -> None:
    """Link to the page of the most frequent level of a run, with the run chosen."""
    page, chosen = results_of(run_id, *(ask(pages.most_of_run, run_id) or ("op", None, None)))
    messages.link(page, "See results", "leaderboard", **chosen)


def results_of(run_id: str, level: str, gpu: str | None, subject: str | None) -> tuple[str, dict[str, str]]:
    """Return the page of a level, and its parameters for a run; for a model, its name and device."""
    model = level_of(level).whole_model
    chosen = {"model": subject if model else None, "model_gpu" if model else "gpu": gpu, "run": run_id}
    said = {name: value for name, value in chosen.items() if value is not None}
    return _PAGES.get(level, "overview"), said


def _before(run: pd.Series, runs: pd.DataFrame) -> str | None:
    """Return the latest earlier run of the same sweep on the same GPU; None if there is none."""
    others = runs[(runs["run_id"] != run["run_id"]) & (runs["gpu_name"] == run["gpu_name"])].to_dict("records")
    sweep, end = listing.sweep_of(run).get("name"), str(run["created"])
    names = (
        each["run_id"]
        for each in others
        if str(each["created"]) <= end and listing.sweep_of(each).get("name", "") == sweep
    )
    return next(names, None)  # the runs are sorted newest first
