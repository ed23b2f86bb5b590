"""A report's own plot: a number by sequence length, a panel a head_dim; printed dashed, ours solid.

Where a report has few lengths of one setting, its plot has bars by configuration instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

from pages.ui.draw import charts, text
from pages.ui.draw.titles import ChartTitle
from pages.ui.reports.choose import Choice, own_runs
from pages.ui.shell.data import ask_slowly
from results import reports
from results.metrics import METRICS
from results.reports import side_by_side
from results.reports.curves import CurvePoint, curve_points
from results.store.database import Store

_LOG = ("latency_ms", "peak_memory_mb", "speedup")  # over several decades; the others start at 0
_MOST_PANELS = 6
_LENGTHS = 3  # that make a line
_TENS = [m * 10.0**power for power in range(-4, 7) for m in (1, 2, 5)]
_DECADES = [10.0**power for power in range(-4, 8)]
_FIRST = ("latency_ms", "speedup")


def draw(choice: Choice) -> None:
    """Ask for the quantity and setting; draw its curves, of the report alone where no run stands beside it."""
    found = ask_slowly(points, choice)
    if not found:
        st.info("No number of this report belongs to a sequence length.", icon=":material/show_chart:")
        return
    with st.container(horizontal=True):
        metric = _one(found, "metric", "Quantity", lambda name: METRICS[name].label, first=_FIRST)
        found = [point for point in found if point.metric == metric]
        mode = _one(found, "mode", "Mode", lambda name: text.MODE_WORDS.get(name, name), first=tuple(text.MODE_WORDS))
        found = [point for point in found if str(point.mode) == mode]
        lines = max(len(sizes) for sizes in _lengths(found).values()) >= _LENGTHS
        for field, label in (("dtype", "Data type"), *([("setting", "Batch, heads and mask")] if lines else [])):
            value = _one(found, field, label, str, most=True)
            found = [point for point in found if str(getattr(point, field)) == value]
    label = METRICS[metric].label
    report = reports.get(choice.report)
    about = [text.MODE_WORDS.get(mode, ""), str(found[0].dtype or ""), found[0].setting if lines else ""]
    sides = f"ours: {', '.join(choice.runs)}" if any(point.ours for point in found) else ""
    by = "sequence length" if lines else "configuration"
    title = ChartTitle(f"{label} by {by}", tuple(filter(None, (report.LABEL, *about))), sides)
    made = figure(found, metric) if lines else bars(found, metric)
    charts.show(made, title, key="report_chart", alt=f"{label} by {by} as published and as measured")
    printed = "Dashed: as printed." if lines else "Hatched: as printed."
    st.caption(f"{printed}{' Solid: ours.' if sides else ''} Where there is no number, the tables say why.")


def figure(found: Sequence[CurvePoint], metric: str) -> go.Figure:
    """Return a panel a head_dim with a line an implementation and side, all on one y axis."""
    dims = sorted({point.head_dim for point in found}, key=lambda dim: (dim is None, dim))[:_MOST_PANELS]
    made = make_subplots(rows=1, cols=len(dims), shared_yaxes=True, horizontal_spacing=0.02)
    names = sorted({point.name for point in found})
    palette = charts.colours(names)
    named: set[tuple[str, bool]] = set()
    for column, dim in enumerate(dims, start=1):
        for name in names:
            for ours in (False, True):
                points = [p for p in found if (p.head_dim, p.name, p.ours) == (dim, name, ours)]
                if points:
                    first = (name, ours) not in named
                    named.add((name, ours))
                    made.add_trace(
                        _line(sorted(points, key=lambda p: p.seqlen), palette[name], legend=first), 1, column
                    )
    sizes = sorted({point.seqlen for point in found})
    ticks = sizes if len(sizes) * len(dims) <= 12 else sizes[:: max(1, len(sizes) * len(dims) // 12)]
    made.update_xaxes(type="log", tickvals=ticks, ticktext=[text.size(size) for size in ticks], tickangle=0)
    for column, dim in enumerate(dims, start=1):
        made.update_xaxes(title="seqlen" if dim is None else f"seqlen, head_dim {dim}", col=column)
    made.update_yaxes(**_y_axis(found, metric))
    unit = METRICS[metric].unit
    made.update_yaxes(title=METRICS[metric].label + (f" ({unit})" if unit else ""), col=1)
    return made.update_layout(height=460, legend=charts.LEGEND, hovermode="closest")


def bars(found: Sequence[CurvePoint], metric: str) -> go.Figure:
    """Return a group of bars a configuration, one an implementation and side: hatched as printed, full ours."""
    ordered = sorted(found, key=lambda p: (p.setting, p.head_dim or 0, p.seqlen))
    places = list(dict.fromkeys(map(_configuration, ordered)))
    names = sorted({point.name for point in found})
    palette = charts.colours(names)
    made = go.Figure()
    for name in names:
        for ours in (False, True):
            those = [point for point in ordered if (point.name, point.ours) == (name, ours)]
            if those:
                made.add_bar(
                    x=[_configuration(point) for point in those],
                    y=[point.value for point in those],
                    name=f"{name}, {'ours' if ours else 'printed'}",
                    marker={"color": palette[name], "pattern": {"shape": "" if ours else "/"}},
                    customdata=[f"{point.words}: {text.significant(point.value)}" for point in those],
                    hovertemplate="%{customdata}<extra></extra>",
                )
    made.update_xaxes(type="category", categoryorder="array", categoryarray=places, tickangle=-45, automargin=True)
    unit = METRICS[metric].unit
    made.update_yaxes(title=METRICS[metric].label + (f" ({unit})" if unit else ""), **_y_axis(found, metric))
    return made.update_layout(height=520, barmode="group", legend=charts.LEGEND)


def points(store: Store, choice: Choice) -> list[CurvePoint]:
    """Return the curves of the choice; a question for `ask_slowly`."""
    implementations = dict(choice.places) or reports.get(choice.report).IMPLEMENTATIONS
    return curve_points(side_by_side.published(choice.report), own_runs(choice), implementations)


def _lengths(found: Sequence[CurvePoint]) -> dict[tuple, set[int]]:
    """Return the sequence lengths of each setting, head_dim and dtype."""
    lengths: dict[tuple, set[int]] = {}
    for point in found:
        lengths.setdefault((point.setting, point.head_dim, point.dtype), set()).add(point.seqlen)
    return lengths


def _configuration(point: CurvePoint) -> str:
    return f"{point.setting} S{text.size(point.seqlen)}" + (f" D{point.head_dim}" if point.head_dim else "")


def _line(points: Sequence[CurvePoint], colour: str, *, legend: bool) -> go.Scatter:
    first = points[0]
    return go.Scatter(
        x=[point.seqlen for point in points],
        y=[point.value for point in points],
        name=f"{first.name}, {'ours' if first.ours else 'printed'}",
        legendgroup=f"{first.name} {first.ours}",
        showlegend=legend,
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": "solid" if first.ours else "dash"},
        marker={"symbol": charts.symbol(first.name), "size": 6, "color": colour},
        customdata=[f"{point.words}: {text.significant(point.value)}" for point in points],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _y_axis(found: Sequence[CurvePoint], metric: str) -> dict:
    if metric not in _LOG:
        return {"rangemode": "tozero"}
    low, high = min(point.value for point in found), max(point.value for point in found)
    return charts.log_axis_at(low, high, _DECADES if high / low > 1000 else _TENS, "{:g}".format)


def _one(
    found: Sequence[CurvePoint],
    field: str,
    label: str,
    words: Callable[[str], str],
    *,
    first: tuple[str, ...] = (),
    most: bool = False,
) -> str:
    """Ask for one value of a field where there are several: those of `first` lead, else the one with most points."""
    values = [str(getattr(point, field)) for point in found]
    names = sorted(
        set(values),
        key=lambda name: (first.index(name) if name in first else len(first), -values.count(name) if most else 0, name),
    )
    if len(names) == 1:
        return names[0]
    return st.selectbox(label, names, key=f"report_{field}", bind="query-params", format_func=words, width=260)
