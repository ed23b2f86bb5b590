"""Runs on disk: the list, states, logs and problems."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, tables, text
from pages.ui.shell.data import ask, store
from results.compare.cards import differences, neighbours
from results.files import journal
from results.query import pages

_OVER_MEDIAN = "time over the median"
STATE_COLOURS = text.WORDS["state_colours"]
STATE_ICONS = text.WORDS["state_icons"]
_COLUMNS = text.WORDS["run_columns"]
# A colored chip in a table, with the colors of messages.source_badges.
SOURCE_CHIP = st.column_config.MultiselectColumn(
    "source", options=list(text.SOURCE_WORDS.values()), color=["green", "blue", "violet", "orange"], width=170
)
WITH_THE_APP = ("published", "shipped")  # sources whose runs are next to the code, not in a home
_LOG_BYTES = 8_000
_TABLE, _LISTED = "runs_table", "runs_listed"  # the widget, and the runs of its rows


def folder(run_id: str, source: str) -> journal.RunFolder:
    """Return the folder of a run."""
    home = journal.PUBLISHED if source in WITH_THE_APP else journal.home() / "runs"
    return journal.RunFolder(Path(home) / run_id)


def badges_of(run_ids: Collection[str]) -> str:
    """Return badges in Markdown for the sources of some runs."""
    runs = ask(pages.runs)
    return messages.source_badges(sorted(set(runs.loc[runs["run_id"].isin(run_ids), "source"])))


def with_states(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with their states, uploads without a date first; an upload is always finished."""
    states = [
        "finished" if row["source"] == "upload" else folder(row["run_id"], row["source"]).condition()
        for row in runs.to_dict("records")
    ]
    found = runs.assign(state=states)
    undated = (runs["source"] == "upload") & runs["created"].isna()
    return pd.concat([found[undated], found[~undated]])


def counts(run: Mapping[str, Any]) -> str:
    """Count the numbers of a run, its failures, and the combinations that were not possible."""
    found = ask(pages.outcomes)
    missing = found[found["run_id"] == run["run_id"]]
    failed, skipped = (int(missing[name].sum()) for name in ("failed", "skipped"))
    said = f"{messages.counted(int(run['numbers']), 'number')}, {f'{failed:,}' if failed else 'none'} failed"
    return f"{said}; {skipped:,} not possible there" if skipped else said


def sweep_of(run: Mapping[str, object]) -> dict:
    """Return the sweep that a run records; empty if it records none."""
    try:
        found = json.loads(str(run.get("sweep") or "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def words_of(table: pd.DataFrame) -> Callable[[str], str]:
    """Return a function that describes a run in a list: its title, or sweep and GPU, then date, commit and id."""
    rows = table.set_index("run_id").to_dict("index")
    return lambda run_id: " · ".join(dict.fromkeys(_facts(run_id, rows[run_id])))


def _facts(run_id: str, run: Mapping[str, object]) -> Iterator[str]:
    gpu = "GPU not stated" if text.missing(run["gpu_name"]) else str(run["gpu_name"])
    titled, sweep = not text.missing(run["title"]), sweep_of(run).get("name")
    yield str(run["title"]) if titled else f"{sweep} on {gpu}" if sweep else gpu
    if not text.missing(run["created"]):
        yield f"{pd.Timestamp(str(run['created'])):%Y-%m-%d %H:%M}"
    if not text.missing(run["git_commit"]):
        yield str(run["git_commit"])[:7]
    if titled and gpu not in str(run["title"]):
        yield gpu
    if run["source"] != "upload":
        yield run_id


def show_table(runs: pd.DataFrame) -> None:
    """Draw all runs, newest first; selecting a row opens its run."""
    missing = ask(pages.outcomes).set_index("run_id")
    shown = runs.assign(
        source=[[text.SOURCE_WORDS[source]] for source in runs["source"]],
        title=[next(_facts(run["run_id"], run)) for run in runs.to_dict("records")],
        **{name: runs["run_id"].map(missing[name]).fillna(0).astype(int) for name in ("failed", "skipped")},
    )[[*_COLUMNS]]
    shown["created"] = pd.to_datetime(shown["created"]).dt.strftime("%Y-%m-%d %H:%M")
    select = {"key": _TABLE, "on_select": _open, "selection_mode": "single-row"}
    config, height = tables.declared("runs") | {"source": SOURCE_CHIP}, min(420, 38 + 35 * len(shown))
    alt = "Every run, newest first; select a row to open it"
    tables.grid(shown.rename(columns=_COLUMNS), alt, config, height=height, **select)
    st.session_state[_LISTED] = runs["run_id"].tolist()


def _open() -> None:
    """Open the run of the selected row."""
    rows = st.session_state[_TABLE].selection.rows
    if rows:
        st.session_state["run_id"] = st.session_state[_LISTED][rows[0]]


def state_badge(state: str) -> str:
    """Return a run's state as a badge in Markdown."""
    return f":{STATE_COLOURS.get(state, 'gray')}-badge[{STATE_ICONS.get(state, '')} {state}]"


def log_tail(run_id: str, source: str = "local") -> str:
    """Return the end of a run's log, or of the output of its process; empty if it has neither."""
    for path in (folder(run_id, source).log_path, journal.home() / "logs" / f"{run_id}.txt"):
        try:
            with open(path, "rb") as file:
                file.seek(max(0, path.stat().st_size - _LOG_BYTES))
                end = file.read().decode("utf-8", errors="replace")
        except OSError:
            continue
        if end.strip():
            return end
    return ""


def show_log(run_id: str, source: str) -> None:
    """Draw the end of the log, and unreadable lines of the journal."""
    end = log_tail(run_id, source)
    if end:
        st.code(end, language=None, height=320, wrap_lines=True)
    else:
        st.caption("This run has no log.")
    for problem in journal.problem_words((line, reason) for run, line, reason in store().problems if run == run_id):
        st.warning(f"Left out: {text.plain(problem)}", icon=":material/warning:")


def show_cards(row: pd.Series) -> None:
    """Draw the GPUs of a run on several, and how much their speeds differ."""
    cards = {} if text.missing(row.get("cards")) else json.loads(str(row["cards"]))
    if not cards:
        return
    ratios = differences(cards)
    rows = [(name, facts.get("host"), facts.get("gpu_name"), ratios.get(name)) for name, facts in cards.items()]
    st.markdown("**Cards**")
    table = pd.DataFrame(rows, columns=["card", "host", "GPU", _OVER_MEDIAN])
    config = {_OVER_MEDIAN: tables.number(_OVER_MEDIAN, "%.3f")}
    tables.grid(table, "The run's cards and how far their speeds differ", config)
    st.caption("Each card measured whole shapes of the sweep. The speedups of a shape are of one card.")
    if words := neighbours(cards, str(row.get("command"))):
        st.caption(text.plain(words))
