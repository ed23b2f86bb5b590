"""The plot of a report: a number by sequence length, a panel for each head_dim; printed dashed, ours solid.

If a report has few lengths for one setting, its plot has bars by configuration instead.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import streamlit as st

from pages.ui.draw import charts, colours, text
from pages.ui.draw.charts import Chart, Series
from pages.ui.draw.titles import ChartTitle
from pages.ui.reports.choose import Choice, own_runs
from pages.ui.shell.data import ask_slowly
from results import reports
from results.metrics import METRICS
from results.reports import side_by_side
from results.reports.curves import CurvePoint, curve_points
from results.store.database import Store

_LOG = ("latency_ms", "peak_memory_mb", "speedup")  # these span decades; axes of other metrics start at 0
_MOST_PANELS = 6
_LENGTHS = 3  # the minimum for a line
_DECADES = [10.0**power for power in range(-4, 8)]
_FIRST = ("latency_ms", "speedup")


def draw(choice: Choice) -> None:
    """Ask for the quantity and setting; draw the curves of the report and of the chosen runs."""
    found = ask_slowly(points, choice)
    if not found:
        st.info("No number of this report belongs to a sequence length.", icon=":material/show_chart:")
        return
    with st.container(horizontal=True):
        found = _narrowed(found, "metric", "Quantity", lambda name: METRICS[name].label, first=_FIRST)
        modes = text.MODE_WORDS
        found = _narrowed(found, "mode", "Mode", lambda name: modes.get(name, name), first=tuple(modes))
        lines = max(len(sizes) for sizes in _lengths(found).values()) >= _LENGTHS
        found = _narrowed(found, "dtype", "Data type", most=True)
        found = _narrowed(found, "setting", "Batch, heads and mask", most=True) if lines else found
    metric, mode = found[0].metric, str(found[0].mode)
    label = METRICS[metric].label
    report = reports.get(choice.report)
    about = [text.MODE_WORDS.get(mode, ""), str(found[0].dtype or ""), found[0].setting if lines else ""]
    sides = f"ours: {', '.join(choice.runs)}" if any(point.ours for point in found) else ""
    by = "sequence length" if lines else "configuration"
    title = ChartTitle(f"{label} by {by}", tuple(filter(None, (report.label, *about))), sides)
    made = panels(found, metric) if lines else bars(found, metric)
    charts.show(made, title, key="report_chart", alt=f"{label} by {by} as published and as measured")
    printed = "Dashed: as printed." if lines else "Hatched: as printed."
    st.caption(f"{printed}{' Solid: ours.' if sides else ''} Where there is no number, the tables say why.")


def panels(found: Sequence[CurvePoint], metric: str) -> Chart:
    """Return a panel for each head_dim with a line for each implementation and side, all on one vertical axis."""
    dims = sorted({point.head_dim for point in found}, key=lambda dim: (dim is None, dim))[:_MOST_PANELS]
    names = sorted({point.name for point in found})
    palette = colours.palette(names)
    made: list[Series] = []
    for panel, dim in enumerate(dims):
        for name, ours in product(names, (False, True)):
            own = [p for p in found if (p.head_dim, p.name, p.ours) == (dim, name, ours)]
            if own:
                label = _side(name, ours)
                first = label not in {series.name for series in made}
                made.append(_line(sorted(own, key=lambda p: p.seqlen), label, palette[name], first, panel))
    sizes = sorted({point.seqlen for point in found})
    ticks = sizes if len(sizes) * len(dims) <= 12 else sizes[:: max(1, len(sizes) * len(dims) // 12)]
    x = charts.log_ticks(ticks, text.size) | {"tickangle": 0}
    columns = [x | charts.titled("seqlen" if dim is None else f"seqlen, head_dim {dim}") for dim in dims]
    return Chart(made, x, _y_axis(found, metric), 460, columns=columns)


def bars(found: Sequence[CurvePoint], metric: str) -> Chart:
    """Return a group of bars for each configuration: hatched as printed, full ours."""
    ordered = sorted(found, key=lambda p: (p.setting, p.head_dim or 0, p.seqlen))
    names = sorted({point.name for point in found})
    palette, made = colours.palette(names), []
    for name, ours in product(names, (False, True)):
        own = [point for point in ordered if (point.name, point.ours) == (name, ours)]
        if own:
            values = [point.value for point in own]
            look: dict[str, Any] = {"bars": "v", "pattern": "" if ours else "/"}
            places = [_configuration(point) for point in own]
            made.append(Series(_side(name, ours), places, values, palette[name], _words(own), **look))
    x = charts.categories(list(dict.fromkeys(map(_configuration, ordered))), tickangle=-45, automargin=True)
    return Chart(made, x, _y_axis(found, metric), 520)


def points(store: Store, choice: Choice) -> list[CurvePoint]:
    """Return the curves of the choice; a question for `ask_slowly`."""
    implementations = dict(choice.places) or reports.get(choice.report).implementations
    return curve_points(side_by_side.published(choice.report), own_runs(choice), implementations)


def _lengths(found: Sequence[CurvePoint]) -> dict[tuple, set[int]]:
    """Return the sequence lengths of each setting, head_dim and dtype."""
    lengths: dict[tuple, set[int]] = {}
    for point in found:
        lengths.setdefault((point.setting, point.head_dim, point.dtype), set()).add(point.seqlen)
    return lengths


def _configuration(point: CurvePoint) -> str:
    return f"{point.setting} S{text.size(point.seqlen)}" + (f" D{point.head_dim}" if point.head_dim else "")


def _line(points: Sequence[CurvePoint], label: str, colour: str, legend: bool, panel: int) -> Series:
    x, y, name = [point.seqlen for point in points], [point.value for point in points], points[0].name
    look: dict[str, Any] = {"line": "solid" if points[0].ours else "dash", "symbol": colours.symbol(name), "size": 6}
    return Series(label, x, y, colour, _words(points), **look, group=label, legend=legend, panel=panel)


def _side(name: str, ours: bool) -> str:
    return f"{name}, {'ours' if ours else 'printed'}"


def _words(points: Sequence[CurvePoint]) -> list[str]:
    return [f"{point.words}: {text.significant(point.value)}" for point in points]


def _y_axis(found: Sequence[CurvePoint], metric: str) -> dict:
    unit = METRICS[metric].unit
    title = charts.titled(METRICS[metric].label + (f" ({unit})" if unit else ""))
    if metric not in _LOG:
        return title | {"rangemode": "tozero"}
    low, high = min(point.value for point in found), max(point.value for point in found)
    return title | charts.log_axis_at(low, high, _DECADES if high / low > 1000 else charts.TENS)


def _narrowed(
    found: Sequence[CurvePoint],
    field: str,
    label: str,
    words: Callable[[str], str] = str,
    *,
    first: tuple[str, ...] = (),
    most: bool = False,
) -> list[CurvePoint]:
    """Return the points with one value of a field; ask for it if there are several, those of `first` first."""
    values = [str(getattr(point, field)) for point in found]

    def rank(name: str) -> tuple:
        return (first.index(name) if name in first else len(first)), -values.count(name) if most else 0, name

    names = sorted(set(values), key=rank)
    if len(names) > 1:
        look: dict[str, Any] = {"key": f"report_{field}", "bind": "query-params", "format_func": words, "width": 260}
        names = [st.selectbox(label, names, **look)]
    return [point for point, value in zip(found, values, strict=True) if value == names[0]]
