"""What the checks say about every run: computed once for each state of a run, asked for by any page.

Other pages use `badge` (a few words for a run) and `about` (the findings of some rows); an upload is checked with
`of_upload` before anything of it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import pandas as pd
import streamlit as st

from pages.ui.draw import text
from pages.ui.shell.data import ask, store
from results.checks import CHECKS, DOUBTFUL, IMPOSSIBLE, Finding, check
from results.files import library
from results.files.journal import JournalError
from results.formats.upload import Understanding
from results.query import pages
from results.records import CASE_FIELDS, Measurement, Run

TITLES = {rule.name: rule.title for rule in CHECKS}
WEIGHTS = {IMPOSSIBLE: "contradicts arithmetic or the device", DOUBTFUL: "possible, but not what it looks like"}
_BADGES = {IMPOSSIBLE: ("red", ":material/report:"), DOUBTFUL: ("orange", ":material/help:")}
_COLUMNS = ("weight", "rule", "title", "place", "source", "run_id", "sentence", "origin", "measurement_ids")
_ROW = (
    *("run_id", "implementation", "mode", "timing", "metric", "status", "value", "p20", "p80", "n", "printed"),
    *("origin",),
)


def everything() -> pd.DataFrame:
    """Return all findings, the impossible first; `place` is the report or run that they are about."""
    return _everything(str(store().home), store().version())


def about(run_ids: Collection[str], measurement_ids: Collection[str]) -> pd.DataFrame:
    """Return the findings that some rows of those runs take part in."""
    wanted, found = set(measurement_ids), _of_runs(run_ids)
    return found[[not wanted.isdisjoint(ids) for ids in found["measurement_ids"]]]


def badge(run_ids: Collection[str]) -> str:
    """Return Markdown badges that count the findings of some runs; empty if there are none."""
    counts = _of_runs(run_ids)["weight"].value_counts()
    return badges({weight: int(counts.get(weight, 0)) for weight in WEIGHTS})


def badges(counts: dict[str, int]) -> str:
    """Return numbers of findings by weight as Markdown badges."""
    shown = [(*_BADGES[weight], count, weight) for weight, count in counts.items() if count]
    return " ".join(f":{colour}-badge[{icon} {count} {weight}]" for colour, icon, count, weight in shown)


def of_upload(found: Understanding) -> list[Finding]:
    """Check an upload that is not stored yet."""
    rows = {run.run_id: [m for m in found.measurements if m.run_id == run.run_id] for run in found.runs}
    return check((run, rows[run.run_id]) for run in found.runs)


def show(table: pd.DataFrame, *, key: str) -> tuple[str, ...]:
    """Draw a row a finding; return the ids of the rows that the selected one is about."""
    event = st.dataframe(
        table[["weight", "sentence", "place", "source", "title", "origin"]],
        hide_index=True,
        row_height=84,  # four lines of a sentence
        height=min(620, 40 + 84 * len(table)),
        alt="Every finding with its arithmetic",
        key=key,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "title": st.column_config.TextColumn("rule", width="medium"),
            "place": st.column_config.TextColumn("of", width="medium"),
            "source": st.column_config.TextColumn("whose", width="medium"),
            "sentence": st.column_config.TextColumn("finding", width=520),
            "origin": st.column_config.TextColumn("where", width="medium"),
        },
    )
    picked = event.selection.rows
    return table["measurement_ids"].iloc[picked[0]] if picked and picked[0] < len(table) else ()


def rows_of(measurement_ids: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a finding as they are stored, the one it is about first."""
    found = store().query(
        f"SELECT measurement_id, {', '.join((*_ROW, *CASE_FIELDS))} FROM measurements WHERE measurement_id IN ?",
        [list(measurement_ids)],
    )
    place = {measurement_id: at for at, measurement_id in enumerate(measurement_ids)}
    ordered = found.sort_values("measurement_id", key=lambda ids: ids.map(place))
    return ordered.drop(columns="measurement_id").dropna(axis="columns", how="all")


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Count the findings of each rule in each report or run, a column a place."""
    named = table.assign(rule=table["title"])
    found = named.pivot_table(index=["weight", "rule"], columns="place", values="title", aggfunc="count", fill_value=0)
    return found.sort_index(ascending=False, level="weight", sort_remaining=False).reset_index()


def rules_table() -> None:
    """Draw what is looked for."""
    st.dataframe(
        pd.DataFrame(
            [{"weight": rule.weight, "rule": rule.title, "found where": _first_line(rule.look)} for rule in CHECKS]
        ),
        hide_index=True,
        alt="Every rule",
        column_config={"found where": st.column_config.TextColumn("found where", width="large")},
    )


def _of_runs(run_ids: Collection[str]) -> pd.DataFrame:
    """Return the findings of some runs, without checking the others."""
    wanted = set(run_ids)
    groups = {place: ids for place, ids in _groups(str(store().home), store().version()).items() if wanted & set(ids)}
    found = _table(groups)
    return found[found["run_id"].isin(wanted)]


@st.cache_data(max_entries=4, show_spinner="Checking every number")
def _everything(home: str, version: str) -> pd.DataFrame:
    return _table(_groups(home, version))


@st.cache_data(max_entries=4, show_spinner=False)
def _groups(home: str, version: str) -> dict[str, tuple[str, ...]]:
    """Group the runs that are checked together: those of a published report, any other alone."""
    groups: dict[str, list[str]] = {}
    for run in ask(pages.runs).to_dict("records"):
        whole = run["source"] == "published" and isinstance(run["report"], str)
        groups.setdefault(run["report"] if whole else run["run_id"], []).append(run["run_id"])
    return {place: tuple(run_ids) for place, run_ids in groups.items()}


def _table(groups: dict[str, tuple[str, ...]]) -> pd.DataFrame:
    home, folders = str(store().home), {folder.run_id: folder for folder in library.folders()}
    runs = ask(pages.runs)
    whose = {run: text.SOURCE_WORDS[source] for run, source in zip(runs["run_id"], runs["source"], strict=True)}
    records = []
    for place, run_ids in groups.items():
        there = tuple(run_id for run_id in run_ids if run_id in folders)
        found = _of_group(home, there, tuple(library.stamp(folders[run_id]) for run_id in there))
        records += [_record(finding, place, whose.get(finding.run_id, "")) for finding in found]
    return _impossible_first(pd.DataFrame(records, columns=[*_COLUMNS]))


@st.cache_data(max_entries=400, show_spinner=False)
def _of_group(home: str, run_ids: tuple[str, ...], stamps: tuple) -> list[Finding]:
    """Check runs again only when one of them has changed: a running sweep leaves the others as they are."""
    return check(_readable(run_ids))


def _readable(run_ids: Sequence[str]) -> Iterator[tuple[Run, list[Measurement]]]:
    """Yield the runs that can be read; the page Runs says why others cannot."""
    for run_id in run_ids:
        with suppress(JournalError):
            yield library.read(library.find(run_id))


def _record(finding: Finding, place: str, whose: str) -> dict[str, object]:
    return {
        "weight": finding.weight,
        "rule": finding.rule,
        "title": TITLES[finding.rule],
        "place": place,
        "source": whose,
        "run_id": finding.run_id,
        "sentence": finding.sentence,
        "origin": finding.origin,
        "measurement_ids": finding.measurement_ids,
    }


def _impossible_first(table: pd.DataFrame) -> pd.DataFrame:
    order = list(WEIGHTS)
    return table.sort_values("weight", key=lambda weights: weights.map(order.index), kind="stable", ignore_index=True)


def _first_line(rule: object) -> str:
    return (rule.__doc__ or "").strip().splitlines()[0]
