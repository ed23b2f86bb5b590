"""What all charts share: colours and marks of implementations, axes, the camera, and values by seqlen as lines.

No figure decides what is compared. A figure is handed to Plotly whole: each later change of one costs as much again as
making it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence

import plotly.graph_objects as go

from pages.ui.draw import text
from pages.ui.shell.data import ask
from results.query.declared import colours as declared_colours

SPARE_COLOURS = ("#1b7fb5", "#d95f0e", "#31a354", "#c51b8a", "#8c6bb1", "#7f7f7f", "#e6ab02", "#41b6c4", "#a63603")
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon"),
    *("triangle-left", "triangle-right", "hourglass", "bowtie", "octagon", "star-square", "star-diamond", "hexagram"),
)
_APART = 60  # of 441 between black and white: nearer colours look alike in a legend
EMPTY_COLOUR = "#8a8f98"  # of what is not measured, and of lines to compare with
MARGIN = {"l": 0, "r": 0, "t": 8, "b": 0}
CAMERA_MARGIN = MARGIN | {"t": 32}  # room for the camera
LEGEND = {"orientation": "h", "y": -0.2}
BARE = {"displayModeBar": False}  # a chart without buttons
CAMERA = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [["toImage"]]}


def camera(name: str) -> dict:
    """Return the configuration of a chart whose only button writes a PNG of that name in the browser."""
    return CAMERA | {"toImageButtonOptions": {"format": "png", "scale": 2, "filename": name}}


def colours(implementations: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name in order: the one it declares, or one of the spare ones."""
    names, declared = sorted(set(implementations)), ask(declared_colours)
    taken = [declared[name] for name in names if name in declared]
    others = [name for name in names if name not in declared]
    apart = [colour for colour in SPARE_COLOURS if all(_distance(colour, other) > _APART for other in taken)]
    spare = apart if len(apart) >= len(others) else SPARE_COLOURS
    return {name: declared.get(name) or spare[others.index(name) % len(spare)] for name in names}


def symbol(name: str) -> str:
    """Return the mark of a name, the same on every chart: by its place among those that declare a colour."""
    known = sorted(ask(declared_colours))
    place = known.index(name) if name in known else zlib.crc32(name.encode())
    return SYMBOLS[place % len(SYMBOLS)]


def lines(
    rows: Iterable[dict], value: str, palette: dict[str, str], hover: Callable[[dict], str], *, of: str, by: str
) -> list[dict]:
    """Return a trace for each name in the field `of`: the field `value` by the field `by`, as a line with marks.

    Rows without the value are left out; a name keeps its trace, so that the legend names it. `hover` says what the
    pointer shows of a row.
    """
    found: dict[str, list[dict]] = {}
    for row in rows:
        known = found.setdefault(row[of], [])
        if not text.missing(row[value]):
            known.append(row)
    return [
        line(name, sorted(known, key=lambda row: row[by]), value, palette, hover, by=by)
        for name, known in sorted(found.items())
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
        "customdata": [hover(row) for row in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def by_size(
    traces: Sequence[dict], label: str, sizes: Iterable[float], y_axis: dict, *, height: int = 440, camera: bool = False
) -> go.Figure:
    """Return traces over sizes of the axis `label`, which is logarithmic and has a tick at each of the sizes."""
    ticks = sorted({int(size) for size in sizes})
    x_axis = {"type": "log", "tickvals": ticks, "ticktext": [text.size(tick) for tick in ticks]}
    layout = {
        "xaxis": x_axis | {"title": {"text": label}},
        "yaxis": y_axis,
        "height": height,
        "margin": CAMERA_MARGIN if camera else MARGIN,
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return go.Figure({"data": list(traces), "layout": layout})


def log_axis(low: float, high: float) -> dict:
    """Return a logarithmic axis with whole numbers at its ticks: 1, 2 and 5 of each decade, or the decades if many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def log_axis_at(low: float, high: float, marks: Sequence[float], write: Callable[[float], str]) -> dict:
    """Return a logarithmic axis with those of the rising marks that the values reach, and one more on either side.

    Where fewer than two marks lie among the values, the axis itself reaches two.
    """
    shown = [*[mark for mark in marks if mark < low][-1:], *[mark for mark in marks if low <= mark <= high]]
    shown += [mark for mark in marks if mark > high][:1]
    axis = {"type": "log", "tickvals": shown, "ticktext": [write(mark) for mark in shown]}
    narrow = len(shown) > 1 and sum(low <= mark <= high for mark in shown) < 2
    return axis | ({"range": [math.log10(shown[0]), math.log10(shown[-1])]} if narrow else {})


def _distance(colour: str, other: str) -> float:
    """Return how far two colours, each #rrggbb, lie apart in red, green and blue."""
    return math.dist(*([int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in (colour, other)))
