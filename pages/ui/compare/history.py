"""A sweep over runs and commits of one GPU: the time of chosen shapes in each run, and its changes."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.compare.verdicts import MARKS, RULE, outcome_of
from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.charts import Chart, Series
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import chips, select
from pages.ui.shell.data import ask, records_of
from results import levels
from results.compare.compare import COMPARED
from results.compare.history import REGRESSIONS, CellHistory, HistoryPoint, RunChain, chains, changes, histories
from results.files import library
from results.files.journal import JournalError
from results.records import Run
from results.slice import AS_PUBLISHED, CASE_KEY
from results.store.database import Store

TIME, RELATIVE = "Time (ms)", "Relative to the first run"
_MOST_RUNS, _LINES, _LABELS = 50, 6, 12
# One row if two of the runs have a time of the same shape, mode and implementation.
_SHARED = f"""
SELECT 1 FROM measurements WHERE run_id = ANY(?) AND metric = 'latency_ms' AND status = 'ok'
GROUP BY {CASE_KEY}, implementation, mode, timing HAVING count(DISTINCT run_id) > 1 LIMIT 1
"""
_DASHES = ("solid", "dash", "dot", "dashdot")


def section() -> None:
    """Ask for a sweep and its shapes; draw their times over the runs, then a table of all changes."""
    known = ask(_chains)
    if not known:
        messages.say("no_history")
        messages.link("run_sweep", "Run sweep", "play_circle")
        return
    by_name = {f"{chain.sweep} on {chain.gpu}": chain for chain in known}

    def words(name: str) -> str:
        runs = by_name[name].runs
        return f"{name}: {len(runs)} runs, {' to '.join(dict.fromkeys(runs[at].created[:10] for at in (0, -1)))}"

    chain = by_name[select.named_choice("Sweep", "history_of", [*by_name], next(iter(by_name)), words)]
    runs = chain.runs[-_MOST_RUNS:]
    found = _histories(tuple(run.run_id for run in runs), tuple(library.stamp(library.find(r.run_id)) for r in runs))
    if not found:
        st.info("The runs of this sweep have no shape in common, so nothing has a history.", icon=":material/timeline:")
        return
    found = _of_kind(found)
    told = changes(found)
    _headline(told, runs)
    chosen = _lines_of(found)
    quantity = select.segments("Quantity", "history_quantity", (TIME, RELATIVE))
    chart = history_chart(chosen, runs, relative=quantity == RELATIVE)
    what = "Time over runs" if quantity == TIME else "Time relative to the first run"
    about = (chain.gpu, f"sweep {chain.sweep}", f"{runs[0].created[:10]} to {runs[-1].created[:10]}")
    title = ChartTitle(what, about)
    alt = f"{what} of the chosen shapes, oldest run left"
    charts.show(chart, title, key="history_chart", alt=alt)
    st.caption(f"Bars: 95 % interval of the median. ▼ slower, ▲ faster than in the run before. {RULE}")
    st.subheader("What changed, newest first")
    if not told:
        st.markdown("No shape became faster or slower from one run to the next.")
        return
    table = pd.DataFrame([_change_row(*each) for each in told])
    tables.grid(table, "Every change from one run to the next, newest first", tables.declared("history"))
    messages.download("Download changes", title.file_name, lambda: table, "history_csv")


def history_chart(chosen: Sequence[CellHistory], runs: Sequence[Run], *, relative: bool) -> Chart:
    """Return a line for each shape over the runs, evenly spaced, with intervals and marks at changes."""
    places = [run.run_id for run in runs]
    palette = colours.palette([history.implementation for history in chosen])
    found, scales = [], []
    for at, history in enumerate(chosen):
        dash = _DASHES[sum(other.implementation == history.implementation for other in chosen[:at]) % len(_DASHES)]
        points = [point for point in history.points if point.measurement.value]
        scales.append(1 / points[0].measurement.value if relative and points else 1.0)
        found.append(_line(history, points, scales[-1], palette[history.implementation], dash))
    for outcome in ("SLOWER", "FASTER"):
        marked = [
            (point.run.run_id, scale * point.measurement.value)
            for history, scale in zip(chosen, scales, strict=True)
            for point in history.points
            if point.outcome == outcome
        ]
        if marked:
            colour, symbol = MARKS[outcome]
            look: dict[str, Any] = {"symbol": symbol, "size": 15, "outline": 1}
            ids, times = zip(*marked, strict=True)
            found.append(Series(f"{outcome} than the run before", ids, times, colour, **look))
    every = -(-len(places) // _LABELS)
    labels = [f"{run.created[:10]}<br>{(run.git_commit or 'no commit')[:7]}" for run in runs]
    x = charts.categories(places, tickvals=places[::every], ticktext=labels[::every], automargin=True)
    x |= charts.titled("run: date and commit") | {"range": [-0.5, len(places) - 0.5]}
    if relative:
        y = charts.titled("time, relative to its first run") | {"ticksuffix": "×"}
    else:
        values = [p.measurement.value for history in chosen for p in history.points if p.measurement.value]
        axis = charts.log_axis_at(min(values), max(values), charts.TENS) if values else {}
        y = charts.titled("latency (ms)") | axis
    return Chart(found, x, y, 460)


def _line(history: CellHistory, points: Sequence[HistoryPoint], scale: float, colour: str, dash: str) -> Series:
    found = [point.measurement for point in points]
    errors = (
        [scale * (m.ci_high - m.value) if m.ci_high else 0 for m in found],
        [scale * (m.value - m.ci_low) if m.ci_low else 0 for m in found],
    )
    return Series(
        _name(history),
        [point.run.run_id for point in points],
        [scale * m.value for m in found],
        colour,
        [_hover(history, point) for point in points],
        line=dash,
        symbol=colours.symbol(history.implementation),
        size=7,
        errors=errors,
    )


def _of_kind(found: Sequence[CellHistory]) -> list[CellHistory]:
    """Ask for one timing and mode; return their cells."""
    timings = [t for t in chips.TIMINGS if t in {history.timing or AS_PUBLISHED for history in found}]
    left, right = st.columns(2)
    with left:
        timing = select.segments("Timing", "history_timing", timings) if len(timings) > 1 else timings[0]
    found = [history for history in found if (history.timing or AS_PUBLISHED) == timing]
    known = {history.mode for history in found}
    modes = [*(mode for mode in text.MODE_WORDS if mode in known), *sorted(known - {*text.MODE_WORDS, None})] or [None]
    words = {mode: text.MODE_WORDS.get(mode, mode) for mode in modes}
    with right:
        mode = select.segments("Mode", "history_mode", modes, format_func=words.get) if len(modes) > 1 else modes[0]
    return [history for history in found if history.mode == mode]


def _headline(told: Sequence[tuple[CellHistory, HistoryPoint]], runs: Sequence[Run]) -> None:
    """Count the regressions in the newest run and in all runs."""
    worse = [point for _, point in told if point.outcome in REGRESSIONS]
    newest = sum(point.run.run_id == runs[-1].run_id for point in worse)
    faster = sum(point.run.run_id == runs[-1].run_id and point.outcome == "FASTER" for _, point in told)
    now = messages.counted(newest, "regression") if newest else "No regression"
    better = f" · {messages.counted(faster, 'shape')} faster" * bool(faster)
    st.markdown(f"## {now} in the newest of {messages.counted(len(runs), 'run')}, {len(worse)} in all{better}")


def _lines_of(found: Sequence[CellHistory]) -> list[CellHistory]:
    """Ask for shapes; the first default is regressed shapes, then changed ones, then those with most runs."""

    def rank(history: CellHistory) -> tuple:
        longest = max(point.measurement.value or 0.0 for point in history.points)
        return not history.regressed, not changes([history]), -len(history.points), -longest

    ranked = sorted(found, key=rank)
    by_name = {_name(history): history for history in ranked}
    names = select.widget("history_shapes", [*by_name], [*by_name][:_LINES])
    return [by_name[name] for name in names]


def _change_row(history: CellHistory, point: HistoryPoint) -> dict[str, str]:
    cell = point.against
    return {
        "verdict": outcome_of(cell),
        "date": point.run.created[:16].replace("T", " "),
        "commit": (point.run.git_commit or "–")[:7],
        "implementation": history.implementation,
        "shape": levels.level_of(history.case).short(history.case),
        "before": _time(cell.first.value, cell.first.status),
        "after": _time(cell.second.value, cell.second.status),
        "time ratio": text.ratio(cell.time_ratio),
        "why": cell.reason,
        "run": point.run.run_id,
        "run before": cell.first.run_id,
    }


def _time(value: float | None, status: object) -> str:
    return text.status(str(status)) if value is None else text.ms(value)


def _name(history: CellHistory) -> str:
    return f"{history.implementation} {levels.level_of(history.case).short(history.case)}"


def _hover(history: CellHistory, point: HistoryPoint) -> str:
    commit = (point.run.git_commit or "commit not stated")[:12]
    against = f"\n{outcome_of(point.against)}: {point.against.reason}" if point.against else ""
    return f"{_name(history)}\n{text.ms(point.measurement.value)}, {point.run.run_id}, {commit}{against}"


def _chains(store: Store) -> list[RunChain]:
    runs = []
    for folder in library.folders():
        with suppress(JournalError):  # the page Runs gives the reason
            runs.append(folder.run())
    found = chains(run for run in runs if run.source != "published")
    return [chain for chain in found if store.rows(_SHARED, [[run.run_id for run in chain.runs]])]


@st.cache_resource(max_entries=4, show_spinner="Judging every run against the one before")
def _histories(run_ids: tuple[str, ...], stamps: tuple) -> list[CellHistory]:
    return histories([records_of(run_id, *COMPARED) for run_id in run_ids])
