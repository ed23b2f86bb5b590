"""Which report is shown, which run stands beside it, and which of our implementations for which of its."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.runs import listing
from pages.ui.shell.data import ask_slowly
from results import reports
from results.files import library
from results.records import Measurement, Run
from results.reports import side_by_side
from results.store.database import Store

ALONE = "none: as printed"
NOBODY = "none: its cells stay empty"


@dataclass(frozen=True)
class Choice:
    """A report, the run beside it, and which implementation of that run stands for which of the report."""

    report: str
    run: str | None
    source: str | None  # of that run
    places: tuple[tuple[str, str], ...]


def choose() -> Choice:
    """Draw the widgets that choose what is shown; all of it is in the URL."""
    names = reports.names()
    report = st.pills(
        "Report",
        names,
        default=max(names, key=lambda name: sum(shapes for _, shapes in ask_slowly(side_by_side.like, name)[:1])),
        required=True,
        key="report",
        bind="query-params",
        wrap=True,
        on_change=_forget_the_run,
    )
    runs = dict(ask_slowly(side_by_side.like, report))
    sources = ask_slowly(_sources)
    names = [ALONE, *sorted(runs, key=lambda name: sources[name] == "published")]
    chosen = st.selectbox(
        "Run beside it",
        names,
        index=min(1, len(names) - 1),
        key="beside",
        bind="query-params",
        format_func=lambda name: name if name == ALONE else f"{name} ({text.SOURCE_WORDS[sources[name]]})",
        help="Runs that hold shapes of the report, those with most first.",
    )
    if chosen == ALONE:
        return Choice(report, None, None, ())
    return Choice(report, chosen, sources[chosen], _places(report, chosen))


def _forget_the_run() -> None:
    """Let each report begin with the run that fits it, whatever stood beside the one before."""
    st.session_state.pop("beside", None)
    st.query_params.pop("beside", None)


def facts(choice: Choice) -> None:
    """Draw where both come from, told apart at a glance."""
    report = reports.get(choice.report)
    st.markdown(f"#### {text.plain(report.TITLE)}")
    st.caption(f"{messages.source_badges(['published'])} {text.plain(report.SOURCE)}")
    if choice.run is None:
        return
    row = ask_slowly(_run, choice.run)
    known = [str(row[name]) for name in ("gpu_name", "torch", "triton", "protocol") if not text.missing(row[name])]
    there = set(ask_slowly(_implementations, choice.run))
    pairs = ", ".join(f"{theirs} is {own if own in there else 'not there'}" for theirs, own in choice.places)
    st.caption(
        f"{messages.source_badges([choice.source])} {text.plain(choice.run)}: {text.plain(' · '.join(known))}. "
        f"In these tables {text.plain(pairs)}."
    )


def own_runs(choice: Choice) -> list[tuple[Run, list[Measurement]]]:
    """Return the run beside the report with its measurements; none where the report stands alone."""
    return [library.read(listing.folder(choice.run, choice.source))] if choice.run else []


def _places(report: str, run: str) -> tuple[tuple[str, str], ...]:
    """Ask which implementation of the run stands for which of the report; folded away, as the default usually fits."""
    there = ask_slowly(_implementations, run)
    usual = reports.get(report).IMPLEMENTATIONS
    chosen = []
    with st.expander("Which implementation stands for which", icon=":material/swap_horiz:", key="report_places"):
        for theirs, own in usual.items():
            names = [NOBODY, *there]
            default = next((name for name in (own, theirs) if name in there), NOBODY)
            picked = st.selectbox(theirs, names, index=names.index(default), key=f"place_{theirs}", bind="query-params")
            chosen.append((theirs, picked if picked in there else own))
    return tuple(chosen)


def _sources(store: Store) -> dict[str, str]:
    return dict(store.rows("SELECT run_id, source FROM runs"))


def _run(store: Store, run: str) -> dict[str, object]:
    return store.query("SELECT * FROM runs WHERE run_id = ?", [run]).to_dict("records")[0]


def _implementations(store: Store, run: str) -> list[str]:
    rows = store.rows("SELECT DISTINCT implementation FROM measurements WHERE run_id = ? ORDER BY 1", [run])
    return [name for (name,) in rows]
