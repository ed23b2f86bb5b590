"""Charts as data, and the one engine that turns them into Plotly figures.

A figure is handed to Plotly whole, because each later change costs as much as making it.
"""

import html
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, colours, text
from pages.ui.draw.colours import BACKGROUNDS, EMPTY_COLOUR, TEXT_COLOURS, TEXT_CONTRAST
from pages.ui.draw.titles import ChartTitle

MARGIN = {"l": 0, "r": 0, "t": 32, "b": 0}
TENS = [m * 10.0**power for power in range(-4, 7) for m in (1, 2, 5)]
HALF_DECADES = [m * 10.0**power for power in range(-4, 6) for m in (1, 3)]
# Below the title of the axis, for any width of the page and any number of lines of the legend.
LEGEND = {"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"}
LEGEND |= {"font": {"size": 11}, "traceorder": "normal"}  # more lines than four, or seven without labels, scroll
_BUTTONS = ["zoom2d", "pan2d", "resetScale2d", "toImage"]
_LABEL_PIXELS, _LEGEND_PIXELS, _AROUND = 13, 44, 180  # heights of a label, of the legend, and of title and axis
_LABEL_LETTERS = 22
_HEIGHT = 420


@dataclass(frozen=True)
class Series:
    """Points of one name, drawn as a line, as marks, as both, or as bars.

    `hover` holds the words that the pointer shows at each point, with lines separated by newlines; without it the
    pointer shows nothing. `errors` are the lengths of error bars upwards and downwards.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    colour: str
    hover: Sequence[str] | None = None
    line: str = ""  # dash of the line, such as solid; empty: no line
    width: float = 2
    shape: str = "linear"
    symbol: str = ""  # shape of the marks; empty: no marks
    size: float = 9
    outline: float = 0
    opacity: float = 1
    errors: tuple[Sequence[float], Sequence[float]] | None = None
    labels: Sequence[str] = ()  # words drawn at the points
    label_at: str = "top right"  # where they are drawn
    bars: str = ""  # v or h for vertical or horizontal bars
    pattern: str = ""
    box: bool = False  # a horizontal box plot with all samples in `x`
    group: str | None = None  # series of one group are switched on and off together
    legend: bool = True
    panel: int = 0


@dataclass(frozen=True)
class ReferenceLine:
    """A reference line across a panel at a value of the vertical axis, or of the horizontal one if `vertical`."""

    at: float
    colour: str = EMPTY_COLOUR
    dash: str = "dash"
    width: float = 1.5
    vertical: bool = False
    panel: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart as data: its series, axes, reference lines and notes.

    With `panels`, each entry is the horizontal axis of a panel, side by side, or the vertical axis of a panel, below
    each other; the panels share the other axis.
    """

    series: Sequence[Series]
    x: Mapping[str, Any]
    y: Mapping[str, Any]
    height: int = _HEIGHT
    hover: str = "closest"  # Plotly's hovermode
    stacked: bool = False  # bars of one place; else they are side by side
    rules: Sequence[ReferenceLine] = ()
    band: tuple[float, float] | None = None  # values of the vertical axis that are equal for a reader
    notes: Sequence[Mapping[str, Any]] = ()  # Plotly's annotations
    legend: bool = True
    right: float = 0  # pixels that names at the ends of lines need
    columns: Sequence[Mapping[str, Any]] = field(default=())
    rows: Sequence[Mapping[str, Any]] = field(default=())


def show(chart: Chart, title: ChartTitle, *, key: str, alt: str | None = None) -> None:
    """Draw a chart under its title, which is also in its PNG and names the file.

    Screen readers read `alt`, or the title without it.
    """
    hover = {"font": {"color": TEXT_COLOURS[colours.theme()], "size": 12}, "bgcolor": BACKGROUNDS[colours.theme()]}
    look = {"title": title.layout, "modebar": {"orientation": "h"}, "hoverlabel": hover}
    drawn = figure(chart, top=title.height, **look)
    options = {"format": "png", "scale": 2, "filename": title.file_name}
    config = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [_BUTTONS]}
    st.plotly_chart(drawn, key=key, config=config | {"toImageButtonOptions": options}, alt=alt or title.what)


def show_by_dtype(
    table: pd.DataFrame,
    chart_of: Callable[[pd.DataFrame, str | None], Chart],
    title_of: Callable[[pd.DataFrame, str], ChartTitle],
    key: str,
    alt: str = "",
) -> None:
    """Draw one chart for each dtype of a table."""

    def draw(rows: pd.DataFrame, dtype: str | None) -> None:
        name = cells.dtype_name(dtype)
        said = f"{alt}, {name}" if alt else None
        show(chart_of(rows, dtype), title_of(rows, name), key=f"{key}_{dtype}", alt=said)

    cells.facets(table, draw)


def figure(chart: Chart, top: float = MARGIN["t"], **more: Any) -> go.Figure:
    """Return the Plotly figure of a chart; `more` are other entries of its layout."""
    shapes = [_shape(rule, chart) for rule in chart.rules]
    if chart.band:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": chart.band[0], "y1": chart.band[1]}
        shapes.append(ends | {"type": "rect", "fillcolor": EMPTY_COLOUR, "opacity": 0.2, "line": {"width": 0}})
    layout: dict[str, Any] = {
        "height": chart.height,
        "margin": MARGIN | {"r": chart.right, "t": top},
        "legend": LEGEND | {"maxheight": 80 if any(len(series.labels) for series in chart.series) else 145},
        "showlegend": chart.legend,
        "hovermode": chart.hover,
        "annotations": list(chart.notes),
        "shapes": shapes,
    }
    if any(series.bars for series in chart.series):
        layout |= {"barmode": "stack"} if chart.stacked else {"barmode": "group", "bargap": 0.12}
    data, layout = [_trace(series, chart) for series in chart.series], layout | _axes(chart) | more
    # Streamlit hands each chart to Plotly twice; the revision tells it that the second one is not new.
    return go.Figure({"data": data, "layout": layout | {"datarevision": zlib.crc32(repr((data, layout)).encode())}})


def _trace(series: Series, chart: Chart) -> dict[str, Any]:
    """Return a series as Plotly has it."""
    trace: dict[str, Any] = {
        "type": "bar" if series.bars else "scatter",
        "x": list(series.x),
        "y": list(series.y),
        "name": html.escape(series.name, quote=False),
        "showlegend": series.legend,
        **_hover_of(series),
        **({"legendgroup": series.group} if series.group else {}),
        **({"xaxis": _nth("x", series.panel)} if chart.columns and series.panel else {}),
        **({"yaxis": _nth("y", series.panel)} if chart.rows and series.panel else {}),
    }
    if series.box:
        marks = {"boxpoints": "all", "jitter": 0.4, "pointpos": 0, "marker": {"size": 4, "color": series.colour}}
        return {"type": "box", "x": list(series.x), "name": trace["name"]} | marks
    if series.bars:
        trace |= {"orientation": series.bars, "marker": {"color": series.colour, "pattern": {"shape": series.pattern}}}
        words = {"textposition": "outside", "textangle": -90, "cliponaxis": False}
        return trace | ({"text": list(series.labels)} | words if len(series.labels) else {})
    drawn = {"lines": series.line, "markers": series.symbol, "text": len(series.labels)}
    trace["mode"] = "+".join(kind for kind, there in drawn.items() if there)
    if series.line:
        trace["line"] = {"color": series.colour, "width": series.width, "dash": series.line, "shape": series.shape}
    if series.symbol:
        look = {"symbol": series.symbol, "size": series.size, "color": series.colour, "opacity": series.opacity}
        trace["marker"] = look | ({"line": {"width": series.outline}} if series.outline else {})
    if len(series.labels):
        trace |= {"text": list(series.labels), "textposition": series.label_at, "cliponaxis": False}
        trace |= {"textfont": {"size": 11, "color": colours.legible(series.colour, colours.theme(), TEXT_CONTRAST)}}
    if series.errors:
        up, down = (list(lengths) for lengths in series.errors)
        trace["error_y"] = {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3}
    return trace


def _hover_of(series: Series) -> dict[str, Any]:
    if series.hover is None:
        return {"hoverinfo": "skip"}
    words = [html.escape(said, quote=False).replace("\n", "<br>") for said in series.hover]
    return {"customdata": words, "hovertemplate": "%{customdata}<extra></extra>"}


def _axes(chart: Chart) -> dict[str, Any]:
    """Return the axes of a chart; panels share the space evenly."""
    if chart.columns:
        axes = {_nth("xaxis", at): dict(axis) for at, axis in enumerate(chart.columns)}
        return axes | {"yaxis": dict(chart.y), "grid": _grid(1, len(chart.columns))}
    if chart.rows:
        axes = {_nth("yaxis", at): dict(axis) for at, axis in enumerate(chart.rows)}
        return axes | {"xaxis": dict(chart.x), "grid": _grid(len(chart.rows), 1)}
    return {"xaxis": dict(chart.x), "yaxis": dict(chart.y)}


def _grid(rows: int, columns: int) -> dict[str, Any]:
    below = [["x" + _nth("y", at)] for at in range(rows)]
    subplots = below if rows > 1 else [[_nth("x", at) + "y" for at in range(columns)]]
    return {"rows": rows, "columns": columns, "subplots": subplots, "xgap": 0.05, "ygap": 0.1}


def _nth(letter: str, at: int) -> str:
    return letter if not at else f"{letter}{at + 1}"


def _shape(rule: ReferenceLine, chart: Chart) -> dict[str, Any]:
    line = {"color": rule.colour, "width": rule.width, "dash": rule.dash}
    along, across = ("y", "x") if rule.vertical else ("x", "y")
    value = _nth(across, rule.panel) if chart.rows or chart.columns else across
    place = {f"{across}ref": value, f"{across}0": rule.at, f"{across}1": rule.at}
    return {"type": "line", "line": line, f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1} | place


def lines(
    rows: Iterable[Mapping[str, Any]],
    value: str,
    palette: Mapping[str, str],
    hover: Callable[[Any], str],
    *,
    of: str = "implementation",
    by: str = "seqlen",
    **look: Any,
) -> list[Series]:
    """Return a series for each name in the field `of`: the field `value` by the field `by`, as a line with marks.

    Rows without the value are left out; a name without values keeps its series. `hover` returns what the pointer shows
    at a row, after the name of the series. `look` holds other fields of each series; an empty `line` leaves only marks.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        known = found.setdefault(row[of], [])
        if not text.missing(row[value]):
            known.append(row)
    drawn = []
    for name in colours.ordered(found):
        own = sorted(found[name], key=lambda row: row[by])
        x, y, said = [row[by] for row in own], [row[value] for row in own], [f"{name}: {hover(row)}" for row in own]
        given: dict[str, Any] = {"line": "solid", "symbol": colours.symbol(name)}
        drawn.append(Series(name, x, y, palette[name], said, **given | look))
    return drawn


def reference(name: str, x: Sequence[float], y: Sequence[float], hover: str | None = None, **look: Any) -> Series:
    """Return a gray line to compare with, such as a peak or a formula."""
    said = None if hover is None else [hover] * len(x)
    dashed: dict[str, Any] = {"line": "dash", "width": 1.5} | look
    return Series(name, x, y, EMPTY_COLOUR, said, **dashed)


def by_size(
    series: Sequence[Series],
    label: str,
    sizes: Iterable[float],
    y: Mapping[str, Any],
    *,
    height: int = _HEIGHT,
    room_for: Iterable[str] = (),
) -> Chart:
    """Return a chart over the logarithmic axis `label`, with a tick at each of the sizes.

    If the vertical axis has a range, each series is also named at its end, with as much room as the names `room_for`
    need on the neighboring charts. The legend hides a series with its name.
    """
    ticks = sorted({int(size) for size in sizes})
    x = log_ticks(ticks, text.size) | titled(label) | {"unifiedhovertitle": {"text": f"{label} %{{x:,d}}"}}
    labels = _end_labels(series, ticks[-1], y, height) if ticks and "range" in y else []
    names = [*(label.labels[0] for label in labels), *(name[:_LABEL_LETTERS] for name in room_for if labels)]
    right = 8 + round(6.3 * max(map(len, names), default=0))
    grouped = [replace(each, group=each.group or each.name) for each in series] + labels
    return Chart(grouped, x, y, height + _LEGEND_PIXELS * bool(labels), "x unified", right=right)


def titled(label: str) -> dict[str, Any]:
    """Return the title of an axis as Plotly has it."""
    return {"title": {"text": label}}


def categories(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return an axis of names in the given order."""
    return {"type": "category", "categoryorder": "array", "categoryarray": list(names), **more}


def log_ticks(ticks: Sequence[float], write: Callable[[float], str]) -> dict[str, Any]:
    """Return a logarithmic axis with these ticks."""
    return {"type": "log", "tickvals": list(ticks), "ticktext": [write(tick) for tick in ticks]}


def from_zero(high: float) -> dict[str, Any]:
    """Return a linear axis from 0 to a little above the highest value."""
    return {"range": [0, 1.08 * high], "type": "linear"}


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at 1, 2 and 5 of each decade, or only at the decades if they are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    return log_ticks([step * 10.0**decade for decade in decades for step in steps], "{:g}".format)


def with_range(axis: Mapping[str, Any], low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis that shows these values and a small margin."""
    first, last = math.log10(low), math.log10(high)
    room = max(0.05 * (last - first), 0.05)
    return {**axis, "range": [first - room, last + room]}


def log_axis_at(
    low: float, high: float, marks: Sequence[float], write: Callable[[float], str] = "{:g}".format
) -> dict[str, Any]:
    """Return a logarithmic axis with the marks between two values, and one more on either side.

    If fewer than two marks lie between the values, the axis is widened to two marks.
    """
    shown = [*[mark for mark in marks if mark < low][-1:], *[mark for mark in marks if low <= mark <= high]]
    shown += [mark for mark in marks if mark > high][:1]
    narrow = len(shown) > 1 and sum(low <= mark <= high for mark in shown) < 2
    ends = {"range": [math.log10(shown[0]), math.log10(shown[-1])]} if narrow else {}
    return log_ticks(shown, write) | ends


def close_log_axis(low: float, high: float, write: Callable[[float], str]) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at powers of ten, or at closer marks if the values are close."""
    digits = (1.0,) if high > 100 * low else (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 7)
    axis = log_axis_at(low, high, [digit * 10.0**power for power in range(-17, 9) for digit in digits], write)
    return axis if "range" in axis else with_range(axis, low, high)


def _end_labels(found: Sequence[Series], last: float, y: Mapping[str, Any], height: int) -> list[Series]:
    """Return the names of series next to their last points, spread so that they do not overlap.

    A line that ends before the last size is named above its end.
    """
    low, high = y["range"]
    log = y.get("type") == "log"
    named = [series for series in found if series.legend and len(series.x)]
    ends = [math.log10(series.y[-1]) if log else series.y[-1] for series in named]
    shares = [(end - low) / (high - low) for end, series in zip(ends, named, strict=True) if series.x[-1] >= last]
    places = iter(_spread_out(shares, _LABEL_PIXELS / (height - _AROUND)))
    labels = []
    for series in named:
        short = series.name if len(series.name) <= _LABEL_LETTERS else f"{series.name[: _LABEL_LETTERS - 1]}…"
        place, label_at = series.y[-1], "top center"
        if series.x[-1] >= last:
            place, label_at = low + next(places) * (high - low), "middle right"
            place, short = 10**place if log else place, f"\u2002{short}"
        words: dict[str, Any] = {"labels": [html.escape(short)], "label_at": label_at, "group": series.name}
        labels.append(Series("", [series.x[-1]], [place], series.colour, legend=False, **words))
    return labels


def _spread_out(shares: Sequence[float], apart: float) -> list[float]:
    """Return heights as close to the given ones as a minimum distance allows, in the same order."""
    order = sorted(range(len(shares)), key=lambda at: shares[at])
    placed: list[list[float]] = []  # groups of [mean height, members], from the bottom
    for at in order:
        placed.append([shares[at], 1])
        while len(placed) > 1 and placed[-1][0] - placed[-2][0] < apart * (placed[-1][1] + placed[-2][1]) / 2:
            (mean, count), (other, more) = placed[-2], placed[-1]
            placed[-2:] = [[(mean * count + other * more) / (count + more), count + more]]
    heights = [mean + apart * (place - (count - 1) / 2) for mean, count in placed for place in range(int(count))]
    for at, height in reversed([*enumerate(heights)]):  # Plotly draws nothing above or below the axis
        heights[at] = min(height, [*heights, 1 + apart][at + 1] - apart)
    for at, height in enumerate(heights):
        heights[at] = max(height, heights[at - 1] + apart if at else 0.02)
    return [height for _, height in sorted(zip(order, heights, strict=True))]
