"""What all charts share: colours and marks of implementations, axes, titles, buttons, and values by size.

No figure decides what is compared. A figure is handed to Plotly whole: each later change of one costs as much again as
making it.
"""

from __future__ import annotations

import html
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import text
from pages.ui.draw.titles import ChartTitle
from pages.ui.shell.data import ask
from results.query.declared import colours as declared_colours

SPARE_COLOURS = ("#1b7fb5", "#d95f0e", "#31a354", "#c51b8a", "#8c6bb1", "#7f7f7f", "#e6ab02", "#41b6c4", "#a63603")
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon"),
    *("triangle-left", "triangle-right", "hourglass", "bowtie", "octagon", "star-square", "star-diamond", "hexagram"),
)
MARKS = {  # of implementations on every chart, and their order: own kernels, peers, PyTorch's
    "gluon_hopper": "diamond",
    "triton_fa2": "circle",
    "triton_fa2_tf32": "octagon",
    "gluon_fp8": "triangle-up",
    "triton_split_kv": "circle",
    "tiled_v1": "star-square",
    "tiled_v2": "star-diamond",
    "flash_attn_1": "hexagon",
    "flash_attn_4": "square",
    "flashinfer": "triangle-down",
    "cudnn_frontend": "cross",
    "torch_sdpa_auto": "pentagon",
    "torch_sdpa_cudnn": "triangle-left",
    "torch_sdpa_flash": "hourglass",
    "torch_sdpa_efficient": "triangle-right",
    "torch_sdpa_math": "bowtie",
    "torch_flex": "star",
    "flex_paged": "star",
    "torch_naive": "x",
}
BACKGROUNDS = {"light": "#ffffff", "dark": "#171614"}
_TEXT = {"light": "#31333f", "dark": "#fafafa"}
MARK_CONTRAST, TEXT_CONTRAST = 3.0, 4.5  # WCAG 2.2, 1.4.11 and 1.4.3
_APART = 60  # of 441 between black and white: nearer colours look alike in a legend
_STEPS = 50  # between a colour and white or black
EMPTY_COLOUR = "#8a8f98"  # of what is not measured, and of lines to compare with
MARGIN = {"l": 0, "r": 0, "t": 8, "b": 0}
CAMERA_MARGIN = MARGIN | {"t": 32}  # room for the camera
# Below the title of the axis, however wide the page is and however many lines the legend then has.
LEGEND = {"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"}
LEGEND |= {"font": {"size": 11}}
BARE = {"displayModeBar": False}  # a chart without buttons
CAMERA = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [["toImage"]]}
_BUTTONS = ["zoom2d", "pan2d", "resetScale2d", "toImage"]
_LABEL_PIXELS = 13  # of a line of 11-pixel letters
_LABEL_LETTERS = 22
_HEIGHT = 420


def camera(name: str) -> dict:
    """Return the configuration of a chart whose only button writes a PNG of that name in the browser."""
    return CAMERA | {"toImageButtonOptions": {"format": "png", "scale": 2, "filename": name}}


def show(figure: go.Figure, title: ChartTitle, *, key: str, alt: str | None = None) -> None:
    """Draw a figure under its title, which is in its PNG too and names the file; it can be zoomed and fill the screen.

    `alt` is said by screen readers; without it the title is.
    """
    margin = (figure.layout.margin.to_plotly_json() or MARGIN) | {"t": title.height}
    hover = {"font": {"color": _TEXT[theme()], "size": 12}, "bgcolor": BACKGROUNDS[theme()]}
    figure.update_layout(title=title.layout, margin=margin, modebar={"orientation": "h"}, hoverlabel=hover)
    options = {"format": "png", "scale": 2, "filename": title.file_name}
    config = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [_BUTTONS]}
    st.plotly_chart(figure, key=key, config=config | {"toImageButtonOptions": options}, alt=alt or title.what)


def colours(implementations: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name in order: the one it declares, or one of the spare ones, legible on this theme."""
    names, declared = sorted(set(implementations)), ask(declared_colours)
    taken = [declared[name] for name in names if name in declared]
    others = [name for name in names if name not in declared]
    apart = [colour for colour in SPARE_COLOURS if all(_distance(colour, other) > _APART for other in taken)]
    spare = apart if len(apart) >= len(others) else SPARE_COLOURS
    found = {name: declared.get(name) or spare[others.index(name) % len(spare)] for name in names}
    return {name: legible(colour, theme()) for name, colour in found.items()}


def theme() -> str:
    """Return the theme of the reader's browser, light or dark."""
    return st.context.theme.type or "light"


@cache
def legible(colour: str, on: str, least: float = MARK_CONTRAST) -> str:
    """Return a colour, #rrggbb, moved towards black or white until its contrast on a theme reaches `least`."""
    background = BACKGROUNDS[on]
    end = "#000000" if _luminance(background) > 0.5 else "#ffffff"
    mixed = (_mixed(colour, end, step / _STEPS) for step in range(_STEPS + 1))
    return next(each for each in mixed if contrast(each, background) >= least)


def contrast(colour: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21, by WCAG 2.2."""
    low, high = sorted((_luminance(colour), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def symbol(name: str) -> str:
    """Return the mark of a name, the same on every chart; names without one take a mark that nobody else has."""
    free = [mark for mark in SYMBOLS if mark not in MARKS.values()]
    return MARKS.get(name) or free[zlib.crc32(name.encode()) % len(free)]


def ordered(names: Iterable[str]) -> list[str]:
    """Return names in the order of every chart; those that MARKS does not hold stand before PyTorch's."""
    place = {name: at for at, name in enumerate(MARKS)}
    between = place["torch_sdpa_auto"] - 0.5
    return sorted(set(names), key=lambda name: (place.get(name.partition("@")[0], between), name))


def lines(
    rows: Iterable[dict], value: str, palette: dict[str, str], hover: Callable[[dict], str], *, of: str, by: str
) -> list[dict]:
    """Return a trace for each name in the field `of`: the field `value` by the field `by`, as a line with marks.

    Rows without the value are left out; a name keeps its trace. `hover` says what the pointer shows of a row, after
    the trace's name; the pointer shows all traces at one size.
    """
    found: dict[str, list[dict]] = {}
    for row in rows:
        known = found.setdefault(row[of], [])
        if not text.missing(row[value]):
            known.append(row)
    return [
        line(name, sorted(found[name], key=lambda row: row[by]), value, palette, hover, by=by)
        for name in ordered(found)
    ]


def line(
    name: str, rows: Sequence[dict], value: str, palette: dict[str, str], hover: Callable[[dict], str], *, by: str
) -> dict:
    """Return one trace of `lines`, of rows in order."""
    return {
        "type": "scatter",
        "x": [row[by] for row in rows],
        "y": [row[value] for row in rows],
        "name": name,
        "mode": "lines+markers",
        "line": {"color": palette[name], "width": 2},
        "marker": {"symbol": symbol(name), "size": 9, "color": palette[name]},
        "customdata": [html.escape(hover(row)) for row in rows],
        "hovertemplate": f"{html.escape(name)}: %{{customdata}}<extra></extra>",
    }


def by_size(
    traces: Sequence[dict],
    label: str,
    sizes: Iterable[float],
    y_axis: dict,
    *,
    height: int = _HEIGHT,
    beside: Iterable[str] = (),
) -> go.Figure:
    """Return traces over sizes of the axis `label`, which is logarithmic and has a tick at each of the sizes.

    Where the vertical axis says its range, each trace is named at its end, with as much room as the names on the charts
    `beside` it take; else there is a legend.
    """
    ticks = sorted({int(size) for size in sizes})
    x_axis = {"type": "log", "tickvals": ticks, "ticktext": [text.size(tick) for tick in ticks]}
    labels = _end_labels(traces, ticks[-1], y_axis, height) if ticks and "range" in y_axis else []
    names = [*(label["text"] for label in labels), *(name[:_LABEL_LETTERS] for name in beside if labels)]
    room = max(map(len, names), default=0)
    layout = {
        "xaxis": x_axis | {"title": {"text": label}, "unifiedhovertitle": {"text": f"{label} %{{x:,d}}"}},
        "yaxis": y_axis,
        "height": height,
        "margin": CAMERA_MARGIN | {"r": 8 + round(6.3 * room)},
        "legend": LEGEND,
        "showlegend": not labels,
        "annotations": labels,
        "hovermode": "x unified",
    }
    return go.Figure({"data": list(traces), "layout": layout})


@dataclass(frozen=True)
class BarGroup:
    """One bar of a group: an implementation's value at a size, and what the pointer shows."""

    name: str
    size: str
    value: float
    words: str


def grouped_bars(bars: Sequence[BarGroup], palette: dict[str, str], label: str, y_axis: dict) -> go.Figure:
    """Return a group of bars a size and a bar an implementation, each with its number on it."""
    sizes = list(dict.fromkeys(bar.size for bar in bars))
    traces = []
    for name in ordered(bar.name for bar in bars):
        own = [bar for bar in bars if bar.name == name]
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": [bar.size for bar in own],
                "y": [bar.value for bar in own],
                "text": [text.significant(bar.value) for bar in own],
                "textposition": "outside",
                "textangle": -90,
                "cliponaxis": False,
                "marker": {"color": palette[name]},
                "customdata": [html.escape(bar.words) for bar in own],
                "hovertemplate": f"{html.escape(name)}: %{{customdata}}<extra></extra>",
            }
        )
    layout = {
        "barmode": "group",
        "bargap": 0.12,
        "height": _HEIGHT + 40,
        "margin": CAMERA_MARGIN,
        "legend": LEGEND | {"traceorder": "normal"},
        "xaxis": {"title": {"text": label}, "type": "category", "categoryorder": "array", "categoryarray": sizes},
        "yaxis": y_axis,
        "hovermode": "x unified",
    }
    return go.Figure({"data": traces, "layout": layout})


def from_zero(high: float) -> dict:
    """Return a linear axis from 0 to a little above the highest value."""
    return {"range": [0, 1.08 * high], "type": "linear"}


def log_axis(low: float, high: float) -> dict:
    """Return a logarithmic axis with whole numbers at its ticks: 1, 2 and 5 of each decade, or the decades if many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def with_range(axis: dict, low: float, high: float) -> dict:
    """Return a logarithmic axis that shows these values and a little beyond, the same on every chart beside it."""
    first, last = math.log10(low), math.log10(high)
    room = max(0.05 * (last - first), 0.05)
    return axis | {"range": [first - room, last + room]}


def log_axis_at(low: float, high: float, marks: Sequence[float], write: Callable[[float], str]) -> dict:
    """Return a logarithmic axis with those of the rising marks that the values reach, and one more on either side.

    Where fewer than two marks lie among the values, the axis itself reaches two.
    """
    shown = [*[mark for mark in marks if mark < low][-1:], *[mark for mark in marks if low <= mark <= high]]
    shown += [mark for mark in marks if mark > high][:1]
    axis = {"type": "log", "tickvals": shown, "ticktext": [write(mark) for mark in shown]}
    narrow = len(shown) > 1 and sum(low <= mark <= high for mark in shown) < 2
    return axis | ({"range": [math.log10(shown[0]), math.log10(shown[-1])]} if narrow else {})


def _end_labels(traces: Sequence[dict], last: float, y_axis: dict, height: int) -> list[dict]:
    """Return the names of lines as annotations beside their last points, those at the right end apart from each other.

    A line that ends before the last size is named above its end.
    """
    low, high = y_axis["range"]
    log = y_axis.get("type") == "log"
    at_end, before = [], []
    for trace in traces:
        if trace.get("showlegend") is False or not trace["x"]:
            continue
        value = math.log10(trace["y"][-1]) if log else trace["y"][-1]
        (at_end if trace["x"][-1] >= last else before).append((trace, (value - low) / (high - low)))
    places = _spread_out([share for _, share in at_end], _LABEL_PIXELS / (height - 110))
    found = [
        _label(trace) | {"x": 1, "xref": "paper", "xshift": 6, "y": place, "yref": "paper"}
        for (trace, _), place in zip(at_end, places, strict=True)
    ]
    return found + [
        _label(trace) | {"x": math.log10(trace["x"][-1]), "xshift": 6, "y": share, "yref": "paper", "yshift": 9}
        for trace, share in before
    ]


def _label(trace: dict) -> dict:
    name = trace["name"]
    short = name if len(name) <= _LABEL_LETTERS else f"{name[: _LABEL_LETTERS - 1]}…"
    colour = legible(trace.get("line", trace.get("marker"))["color"], theme(), TEXT_CONTRAST)
    font = {"size": 11, "color": colour}
    return {"text": html.escape(short), "font": font, "showarrow": False, "xanchor": "left", "yanchor": "middle"}


def _spread_out(shares: Sequence[float], apart: float) -> list[float]:
    """Return heights as near to the given ones as a least distance allows, each in its own place."""
    order = sorted(range(len(shares)), key=lambda at: shares[at])
    placed: list[list[float]] = []  # groups of [mean height, members], from below
    for at in order:
        placed.append([shares[at], 1])
        while len(placed) > 1 and placed[-1][0] - placed[-2][0] < apart * (placed[-1][1] + placed[-2][1]) / 2:
            (mean, count), (other, more) = placed[-2], placed[-1]
            placed[-2:] = [[(mean * count + other * more) / (count + more), count + more]]
    heights = [mean + apart * (place - (count - 1) / 2) for mean, count in placed for place in range(int(count))]
    return [height for _, height in sorted(zip(order, heights, strict=True))]


def _distance(colour: str, other: str) -> float:
    """Return how far two colours, each #rrggbb, lie apart in red, green and blue."""
    return math.dist(_channels(colour), _channels(other))


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def _mixed(colour: str, end: str, share: float) -> str:
    pairs = zip(_channels(colour), _channels(end), strict=True)
    return "#" + "".join(f"{round(start + share * (stop - start)):02x}" for start, stop in pairs)


def _luminance(colour: str) -> float:
    """Return the relative luminance of sRGB, by WCAG 2.2."""
    parts = (channel / 255 for channel in _channels(colour))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
