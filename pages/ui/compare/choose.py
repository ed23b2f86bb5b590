"""The two sides of a comparison: which runs or implementations, chosen in the URL, and their judgement."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.filters.select import one_value
from pages.ui.shell.data import ask, store
from results.compare.between_runs import LEAST
from results.compare.compare import Comparison, Side, compare
from results.files import library
from results.query import pages
from results.slice import BASELINES, CASE_KEY

_SHARED = f"""
WITH cells AS (SELECT DISTINCT run_id, hash({CASE_KEY}, implementation, mode, timing) AS cell FROM measurements
               WHERE metric = 'latency_ms' AND status = 'ok')
SELECT older.run_id, newer.run_id
FROM cells older JOIN cells newer ON older.cell = newer.cell AND older.run_id <> newer.run_id
JOIN runs a ON a.run_id = older.run_id JOIN runs b ON b.run_id = newer.run_id
WHERE coalesce(a.created, '1970-01-01') <= coalesce(b.created, '1970-01-01')
GROUP BY ALL
ORDER BY count(*) >= {LEAST} DESC, any_value(b.created) DESC NULLS LAST, count(*) DESC, any_value(a.created) DESC, 1, 2
LIMIT 1
"""
_IMPLEMENTATIONS = """
SELECT implementation FROM measurements WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok'
GROUP BY implementation ORDER BY count(*) DESC, implementation
"""


def two_runs() -> tuple[str, str] | None:
    """Ask for the run before and the run after; return them, or None if there are not two.

    The default is the newest run that shares enough cells with an older one, and that one.
    """
    table = ask(pages.runs)
    table = table[table["numbers"] > 0]
    names = table["run_id"].tolist()
    if len(names) < 2:
        st.info("Two runs are needed. Run a sweep twice, or upload results.", icon=":material/inbox:")
        return None
    pairs = store().rows(_SHARED)
    before, after = pairs[0] if pairs else (names[1], names[0])
    rows = table.set_index("run_id")
    left, right = st.columns(2)
    with left:
        first = one_value("Before", "first", names, before)
        _about(rows.loc[first])
    with right:
        second = one_value("After", "second", names, after, "Judged against the one before.")
        _about(rows.loc[second])
    return first, second


def two_implementations() -> tuple[str, str, str] | None:
    """Ask for a run and two of its implementations; return them, or None if no run has two."""
    table = ask(pages.runs)
    table = table[(table["implementations"] > 1) & (table["numbers"] > 0)]
    if table.empty:
        st.info("No run has two implementations. Run a sweep, or upload results.", icon=":material/inbox:")
        return None
    run_ids = table["run_id"].tolist()
    run_column, left, right = st.columns(3)
    with run_column:
        run_id = one_value("Run", "of_run", run_ids, run_ids[0])
    names = [name for (name,) in store().rows(_IMPLEMENTATIONS, [run_id])]
    if len(names) < 2:
        st.info("This run has speeds of one implementation only. Choose another.", icon=":material/inbox:")
        return None
    baseline = next((name for name in BASELINES if name in names), names[-1])
    rivals = [name for name in names if name != baseline]
    with left:
        first = one_value("Against", "against", sorted(names), baseline)
    with right:
        second = one_value("Implementation", "with", sorted(names), rivals[0], "Judged against the other.")
    return run_id, first, second


def judged(first: str, second: str, names: tuple[str | None, str | None] = (None, None)) -> Comparison:
    """Return the comparison, made once as long as both runs stay as they are."""
    return _judged(first, second, names, tuple(library.stamp(library.find(run_id)) for run_id in (first, second)))


def command(first: str, second: str, names: tuple[str | None, str | None] = (None, None)) -> str:
    """Return the command that prints the comparison in a terminal."""
    sides = [f"{run}/{name}" if name else run for run, name in zip((first, second), names, strict=True)]
    return f"python -m results compare {' '.join(sides)}"


def _about(run: pd.Series) -> None:
    title = "" if text.missing(run["title"]) else text.plain(run["title"])
    st.caption(f"{messages.source_badges([run['source']])} {title}")


@st.cache_resource(max_entries=4, show_spinner="Judging every cell")
def _judged(first: str, second: str, names: tuple[str | None, str | None], stamps: tuple) -> Comparison:
    read = {run_id: library.read(library.find(run_id)) for run_id in {first, second}}
    return compare(Side(*read[first], names[0]), Side(*read[second], names[1]))
