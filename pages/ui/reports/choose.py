"""Which report is shown, which run stands beside it, and which of our implementations for which of its."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.named_choice import named_choice
from pages.ui.runs import listing
from pages.ui.shell.data import ask_slowly
from results import reports
from results.files import library
from results.records import Measurement, Run
from results.reports import side_by_side
from results.store.database import Store

ALONE = "none"
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
    report = named_choice(
        "Report",
        "report",
        names,
        max(names, key=lambda name: sum(shapes for _, shapes in ask_slowly(side_by_side.like, name)[:1])),
        lambda name: reports.get(name).LABEL,
        draw=st.pills,
        required=True,
        wrap=True,
        on_change=_forget_the_run,
    )
    runs = fitting(report)
    sources = ask_slowly(_sources)
    chosen = named_choice(
        "Compare with run",
        "beside",
        [ALONE, *runs],
        runs[0] if runs else ALONE,
        lambda name: "none: the report alone" if name == ALONE else f"{name} ({text.SOURCE_WORDS[sources[name]]})",
        help="Runs that hold shapes of the report. First: those with the implementations that stand for the report's.",
    )
    if chosen == ALONE:
        return Choice(report, None, None, ())
    return Choice(report, chosen, sources[chosen], _places(report, chosen))


def fitting(report: str) -> list[str]:
    """Return the runs that hold shapes of a report, best first: our own, by how many of its implementations they have,
    then by shapes."""
    sources, wanted = ask_slowly(_sources), set(reports.get(report).IMPLEMENTATIONS.values())
    runs = [name for name, _ in ask_slowly(side_by_side.like, report)]
    there = {name: len(wanted & set(ask_slowly(_implementations, name))) for name in runs}
    return sorted(runs, key=lambda name: (sources[name] == "published", -there[name]))


def _forget_the_run() -> None:
    """Let each report begin with the run that fits it, whatever stood beside the one before."""
    st.session_state.pop("beside", None)
    st.query_params.pop("beside", None)


def facts(choice: Choice) -> None:
    """Draw where both come from, told apart at a glance."""
    report = reports.get(choice.report)
    st.markdown(f"#### {text.plain(report.LABEL)}")
    st.caption(f"{messages.source_badges(['published'])} {text.plain(report.SOURCE)}")
    if choice.run is None:
        return
    row = ask_slowly(_run, choice.run)
    known = [str(row[name]) for name in ("gpu_name", "torch", "triton", "protocol") if not text.missing(row[name])]
    there = set(ask_slowly(_implementations, choice.run))
    pairs = ", ".join(f"{theirs} = {own if own in there else 'not measured'}" for theirs, own in choice.places)
    st.caption(
        f"{messages.source_badges([choice.source])} {text.plain(choice.run)}: {text.plain(' · '.join(known))}. "
        f"Published = ours: {text.plain(pairs)}."
    )


def own_runs(choice: Choice) -> list[tuple[Run, list[Measurement]]]:
    """Return the run beside the report with its measurements; none where the report stands alone."""
    return [library.read(listing.folder(choice.run, choice.source))] if choice.run else []


def _places(report: str, run: str) -> tuple[tuple[str, str], ...]:
    """Ask which implementation of the run stands for which of the report; folded away, as the default usually fits."""
    there = ask_slowly(_implementations, run)
    usual = reports.get(report).IMPLEMENTATIONS
    chosen = []
    with st.expander("Match implementations", icon=":material/swap_horiz:", key="report_places"):
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
