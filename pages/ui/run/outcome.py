"""The result of a sweep that this tab followed: one sentence, and links to its numbers."""

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.run import under_way
from pages.ui.runs import listing
from pages.ui.shell import access
from pages.ui.shell.data import ask, store
from results.levels import level_of
from results.query import pages
from results.recommend import winners
from results.slice import Filters
from runner import launch
from runner.launch import LaunchError, RunStatus

_PAGES = {"op": "overview", "decode": "decode", "layer": "layers", "model": "models"}
_ENDED = text.WORDS["sweep_ends"]


def show(run_id: str) -> None:
    """Draw the result of a run and the links to its views."""
    try:
        status = launch.status(run_id)
    except LaunchError:  # deleted in the meantime
        return
    store()
    runs = ask(pages.runs)
    found = runs[runs["run_id"] == run_id]
    with st.container(border=True):
        said = "" if status.state in ("finished", "cancelled") or not status.message else f" {status.message}"
        fastest = _fastest(status, found.iloc[0]) if len(found) else ""
        head = f"{listing.state_badge(status.state)} **{text.plain(run_id)}**"
        st.markdown(f"{head}  \n{_sentence(status, found)}{fastest}{text.plain(said)}")
        with st.container(horizontal=True):
            if status.state in under_way.RESUMABLE:
                under_way.resume_button(run_id, disabled=not access.here(), key="resume_ended")
            if len(found) and found.iloc[0]["numbers"]:
                _links(status, found.iloc[0], runs)


def _sentence(status: RunStatus, found: pd.DataFrame) -> str:
    of_cards = f" ({text.duration(status.cards_s)} of its cards)" if status.cards_s else ""
    after = f" after {text.duration(status.lasted_s)}{of_cards}" if status.lasted_s is not None else ""
    numbers = listing.counts(found.iloc[0]) if len(found) else "no number"
    then = " It can be resumed." if status.state in under_way.RESUMABLE else ""
    return f"{_ENDED.get(status.state, 'The sweep has ended')}{after}: {numbers}.{then}"


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
    return f" Fastest {words}: {text.plain(name)}, in {count} of {messages.counted(len(won), 'shape')}."


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
    like = [
        other["run_id"]
        for other in runs.to_dict("records")
        if other["run_id"] != run["run_id"]
        and other["gpu_name"] == run["gpu_name"]
        and listing.sweep_of(other).get("name", "") == listing.sweep_of(run).get("name")
        and str(other["created"]) <= str(run["created"])
    ]
    return like[0] if like else None  # the runs are sorted newest first
