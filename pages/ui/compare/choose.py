"""The two sides of a comparison, chosen in the URL, and their verdicts."""

import streamlit as st

from pages.ui.filters.select import named_choice
from pages.ui.runs.listing import words_of
from pages.ui.shell.data import ask, records_of, store
from results.compare.between_runs import LEAST
from results.compare.compare import COMPARED, Comparison, Side, compare
from results.files import library
from results.query import pages
from results.slice import BASELINES
from results.sql import SqlFile

_SQL = SqlFile(__file__)

# Two runs of one sweep on one GPU: the newest of the user's, or of the shipped runs those with most changes. Otherwise
# the newest two runs that share at least half of the longer run's numbers.
_SHARED = _SQL("shared", least=LEAST)
_BROAD = _SQL("broad")
_IMPLEMENTATIONS = _SQL("implementations")
VERSIONS = _SQL("versions")  # runs of two versions, the newest first


def two_runs() -> tuple[str, str] | None:
    """Ask for the run before and the run after; return them, or None if there are fewer than two runs.

    A caption says why the default is the first pair.
    """
    table = ask(pages.runs)
    table = table[table["numbers"] > 0]
    names = table["run_id"].tolist()
    if len(names) < 2:
        st.info("Two runs are needed. Run a sweep twice, or upload results.", icon=":material/inbox:")
        return None
    pairs = store().kept(_SHARED)
    before, after, why = pairs[0] if pairs else (names[1], names[0], "the newest runs")
    words = words_of(table)
    left, right = st.columns(2)
    with left:
        first = named_choice("Before", "first", names, before, words)
    with right:
        second = named_choice("After", "second", names, after, words, help="Judged against the one before.")
    if (first, second) == (before, after):
        st.caption(f"Shown first: {why}.")
    return first, second


def two_implementations() -> tuple[str, str, str] | None:
    """Ask for a run and two of its implementations; return them, or None if no run has two.

    The default is the newest of the GPU runs with a baseline and most implementations of the operator.
    """
    table = ask(pages.runs)
    table = table[(table["implementations"] > 1) & (table["numbers"] > 0)]
    if table.empty:
        st.info("No run has two implementations. Run a sweep, or upload results.", icon=":material/inbox:")
        return None
    run_ids = table["run_id"].tolist()
    run_column, left, right = st.columns(3)
    with run_column:
        broad = [name for (name,) in store().rows(_BROAD, [list(BASELINES)]) if name in run_ids]
        run_id = named_choice("Run", "of_run", run_ids, (broad or run_ids)[0], words_of(table))
    names = [name for (name,) in store().rows(_IMPLEMENTATIONS, [run_id])]
    if len(names) < 2:
        st.info("This run has speeds of one implementation only. Choose another.", icon=":material/inbox:")
        return None
    baseline = next((name for name in BASELINES if name in names), names[-1])
    rivals = [name for name in names if name != baseline]
    with left:
        first = named_choice("Against", "against", sorted(names), baseline)
    with right:
        second = named_choice("Implementation", "with", sorted(names), rivals[0], help="Judged against the other.")
    return run_id, first, second


def judged(first: str, second: str, names: tuple[str | None, str | None] = (None, None)) -> Comparison:
    """Return the comparison, which is cached until one of the runs changes."""
    return _judged(first, second, names, tuple(library.stamp(library.find(run_id)) for run_id in (first, second)))


def command(first: str, second: str, names: tuple[str | None, str | None] = (None, None)) -> str:
    """Return the command that prints the comparison in a terminal."""
    sides = [f"{run}/{name}" if name else run for run, name in zip((first, second), names, strict=True)]
    return f"python -m results compare {' '.join(sides)}"


def file_name(first: str, second: str, names: tuple[str | None, str | None] = (None, None)) -> str:
    """Return the file name of the comparison: the runs, or the run and its two implementations."""
    return f"compare-{first}-{names[0]}-{names[1]}" if all(names) else f"compare-{first}-{second}"


@st.cache_resource(max_entries=4, show_spinner="Judging every cell")
def _judged(first: str, second: str, names: tuple[str | None, str | None], stamps: tuple) -> Comparison:
    read = {run_id: records_of(run_id, *COMPARED) for run_id in {first, second}}
    return compare(Side(*read[first], names[0]), Side(*read[second], names[1]))
