"""The choice of a report, of runs to compare with it, and of matching implementations."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.filters.select import bound, named_choice, widget
from pages.ui.shell.data import ask, ask_slowly, records_of
from results import reports
from results.files import library
from results.query import pages
from results.records import Measurement, Run
from results.reports import side_by_side
from results.reports.default_runs import default_runs, tried_of_store
from results.store.database import Store

_ABOUT = {"gpu_name": "", "torch": "PyTorch ", "triton": "Triton "}
NOBODY = "none: its cells stay empty"


@dataclass(frozen=True)
class Choice:
    """A report, the compared runs, and the matches between implementations of the report and of the runs."""

    report: str
    runs: tuple[str, ...] = ()  # none: the report alone
    places: tuple[tuple[str, str], ...] = ()


def choose() -> Choice:
    """Ask for the report, runs and matches; all choices are in the URL."""
    names = reports.names()
    report = named_choice(
        "Report",
        "report",
        names,
        max(names, key=lambda name: sum(shapes for _, shapes in ask_slowly(side_by_side.like, name)[:1])),
        lambda name: reports.get(name).label,
        draw=st.pills,
        required=True,
        wrap=True,
    )
    best = ask_slowly(best_runs, report)
    options = list(dict.fromkeys([*best, *fitting(report)]))
    key = f"beside_{report}"  # a key for each report; otherwise the browser would keep the runs of the previous report
    if "beside" in st.query_params:  # an old link, in which all reports shared one parameter
        st.session_state[key] = [run for run in st.query_params.get_all("beside") if run in options]
        del st.query_params["beside"]
    chosen = widget("compared_runs", options, best, key=key)
    return Choice(report, tuple(chosen), _places(report, chosen) if chosen else ())


def best_runs(store: Store, report: str) -> list[str]:
    """Return the runs that fill a report best; a question for `ask`."""
    return default_runs(report, side_by_side.published(report), tried_of_store(store))


def fitting(report: str) -> list[str]:
    """Return the runs with shapes of a report: own runs first, then by number of its implementations and shapes."""
    sources = ask(pages.runs).set_index("run_id")["source"]
    wanted = set(reports.get(report).implementations.values())
    runs = [name for name, _ in ask_slowly(side_by_side.like, report)]
    there = {name: len(wanted & set(ask_slowly(_implementations, name))) for name in runs}
    return sorted(runs, key=lambda name: (sources[name] == "published", -there[name]))


def facts(choice: Choice) -> None:
    """Draw the sources of the report and of the runs."""
    report = reports.get(choice.report)
    st.markdown(f"## {text.plain(report.label)}")
    st.caption(f"{messages.source_badges(['published'])} {text.plain(report.source)}")
    if not choice.runs:
        return
    rows = ask(pages.runs).set_index("run_id", drop=False).loc[list(choice.runs)].to_dict("records")
    by_facts: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        known = (f"{label}{row[name]}" for name, label in _ABOUT.items() if not text.missing(row[name]))
        by_facts.setdefault(tuple(known), []).append(row["run_id"])
    there = _there(choice.runs)
    pairs = ", ".join(f"{theirs} = {own if own in there else 'not measured'}" for theirs, own in choice.places)
    about = "; ".join(f"{', '.join(runs)}: {' · '.join(known)}" for known, runs in by_facts.items())
    badges = messages.source_badges(list(dict.fromkeys(str(row["source"]) for row in rows)))
    st.caption(f"{badges} {text.plain(about)}. Published = ours: {text.plain(pairs)}.")


def own_runs(choice: Choice) -> list[tuple[Run, list[Measurement]]]:
    """Return the compared runs with their measurements."""
    return [records_of(run) for run in choice.runs if library.find(run)]


def _places(report: str, runs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Ask for the matches between implementations of the report and of the runs."""
    there = _there(runs)
    usual = reports.get(report).implementations
    chosen = []
    with st.expander("Match implementations", icon=":material/swap_horiz:", key="report_places"):
        for theirs, own in usual.items():
            names = [NOBODY, *there]
            default = next((name for name in (own, theirs) if name in there), NOBODY)
            key = f"place_{report}_{theirs}"
            picked = bound(st.selectbox, theirs, key, names, index=names.index(default))
            chosen.append((theirs, picked if picked in there else own))
    return tuple(chosen)


def _there(runs: Sequence[str]) -> list[str]:
    """Return the implementations of some runs."""
    return sorted({name for run in runs for name in ask_slowly(_implementations, run)})


def _implementations(store: Store, run: str) -> list[str]:
    rows = store.rows("SELECT DISTINCT implementation FROM measurements WHERE run_id = ? ORDER BY 1", [run])
    return [name for (name,) in rows]
