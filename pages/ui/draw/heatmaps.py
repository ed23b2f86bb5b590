"""Maps of cells as figures that can be saved: a level's lengths down, its rows across, failures in words.

A figure is handed to Plotly whole: each later change of one costs as much again as making it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import plotly.graph_objects as go
import streamlit as st
from plotly.colors import diverging, sample_colorscale

from pages.ui.draw import text
from pages.ui.draw.charts import CAMERA_MARGIN, EMPTY_COLOUR
from results.levels import Level

FAILED_COLOUR = "#4a4f57"
LIMITS = (1.25, 1.5, 2, 4, 8, 64)  # at which colours may end, either way; the text shows the real number
SLOWER_TO_FASTER = {  # orange, the background's neutral, purple: each end stands out from its theme
    "light": tuple(diverging.PuOr[1:-1]),
    "dark": ("#ffc37a", "#c9792b", "#7d5730", "#45413d", "#5f5582", "#8f7fc4", "#cdbcff"),
}
_STEPS = 120
_UNCLICKABLE = {"itemclick": False, "itemdoubleclick": False}


@dataclass(frozen=True)
class SpeedupScale:
    """Colours of speedups by their log2, symmetric around 1x."""

    limit: float  # the speedup at which colours end, and 1 over it
    colours: tuple[str, ...]

    @property
    def ticks(self) -> dict[float, str]:
        """Return what stands under the colours, by where: -1 at the left end, 1 at the right one."""
        places = (-1.0, -0.5, 0.0, 0.5, 1.0)
        return {place: text.ratio(self.limit**place) for place in places}

    def place(self, speedup: float) -> float:
        """Return where a speedup stands between -1 and 1."""
        return max(-1.0, min(1.0, math.log(speedup) / math.log(self.limit)))

    def colour(self, speedup: float) -> str:
        """Return the colour of a speedup."""
        return _shades(self.colours)[round(_STEPS * (self.place(speedup) + 1) / 2)]


def speedup_scale(speedups: Iterable[float | None]) -> SpeedupScale:
    """Return the scale of a slice's speedups: as wide as they need, for the theme of the page."""
    known = [speedup for speedup in speedups if not text.missing(speedup)]
    widest = max((max(speedup, 1 / speedup) for speedup in known), default=1.0)
    limit = next((limit for limit in LIMITS if widest <= limit), LIMITS[-1])
    return SpeedupScale(limit, SLOWER_TO_FASTER[st.context.theme.type or "light"])


def speedup_heatmap(grid: CellGrid) -> go.Figure:
    """Return a map of speedups: log2 colours around 1x, the number in each cell, failures in words."""
    found = speedup_scale(row.get("speedup") for row in grid.rows.values())
    numbers = {
        "z": grid.values("speedup", lambda row: found.place(row["speedup"]), None),
        "text": grid.values("speedup", lambda row: text.ratio(row["speedup"]), ""),
        "coloraxis": "coloraxis",
    }
    ticks = {"tickvals": list(found.ticks), "ticktext": list(found.ticks.values())}
    bar = {"thickness": 10, "outlinewidth": 0, **ticks}
    axis = {"colorscale": found.colours, "cmin": -1, "cmax": 1, "colorbar": bar}
    return _map(grid, numbers, layout={"coloraxis": axis})


def winner_map(grid: CellGrid, palette: dict[str, str], names: list[str]) -> go.Figure:
    """Return a map of the fastest implementation as colour, paler where it is a tie, and its speedup as text."""
    keys = [(name, tie) for name in names for tie in (False, True)]
    scale = [winner_colour(palette, name, tie) for name, tie in keys] or [EMPTY_COLOUR]
    numbers = {
        "z": grid.values("winner", lambda row: keys.index((row["winner"], bool(row["ties"]))) + 0.5, None),
        "text": grid.values("winner", lambda row: row["label"], ""),
        "colorscale": [(edge / len(scale), colour) for i, colour in enumerate(scale) for edge in (i, i + 1)],
        "zmin": 0,
        "zmax": len(scale),
        "showscale": False,
    }
    squares = [{"symbol": "square", "size": 12, "color": palette[name]} for name in names]
    legend = [
        {"type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": name, "marker": marker}
        for name, marker in zip(names, squares, strict=True)
    ]
    return _map(grid, numbers, legend=legend)


def winner_colour(palette: dict[str, str], name: str, tie: bool) -> str:
    """Return the colour of an implementation; of a tie two thirds of the way to white."""
    if not tie:
        return palette[name]
    return "#" + "".join(f"{(int(palette[name][i : i + 2], 16) + 2 * 255) // 3:02x}" for i in (1, 3, 5))


class CellGrid:
    """Rows by their place on the axes of a level; `shown` is missing of a row that has no number to show.

    The axes reach as far as the rows `table` do, of which `cells` are some, such as those of one dtype.
    """

    def __init__(self, level: Level, cells: Iterable[dict], table: Sequence[dict]) -> None:
        self.level = level
        down, across = level.columns.column, level.rows.column
        self.down, self.across = _sizes(table, down), _sizes(table, across)
        self.y = [text.size(size) for size in self.down]
        self.x = [text.size(size) if size is None else str(size) for size in self.across]
        self.rows = {(_whole(row[down]), _whole(row[across])): row for row in cells}

    def values(self, needed: str, value: Callable[[dict], object], otherwise: object) -> list[list]:
        """Return `value(row)` of each cell that has the needed column, something else elsewhere."""

        def of(row: dict | None) -> object:
            return otherwise if row is None or text.missing(row[needed]) else value(row)

        return [[of(row) for row in line] for line in self.lines()]

    @staticmethod
    def known(row: dict | None) -> bool:
        """Return whether the cell has a number to show."""
        return row is not None and not text.missing(row.get("shown"))

    def places(self) -> Iterator[tuple[str, str, dict | None]]:
        """Yield of every cell its two labels and its row."""
        for y, line in zip(self.y, self.lines(), strict=True):
            for x, row in zip(self.x, line, strict=True):
                yield x, y, row

    def lines(self) -> list[list[dict | None]]:
        """Return the rows as they lie on the page."""
        return [[self.rows.get((y, x)) for x in self.across] for y in self.down]


def is_empty(row: dict | None) -> bool:
    """Return whether nothing was measured there, which is not a failure."""
    return row is None or text.missing(row["status"])


def failure(row: dict | None) -> str:
    """Say in a word or two why there is no number."""
    return "not measured" if row is None else row.get("failure") or text.status(row.get("status"))


@cache
def _shades(colours: tuple[str, ...]) -> list[str]:
    """Return the colours of a scale at _STEPS places; finding one shade takes long."""
    return sample_colorscale(list(colours), [step / _STEPS for step in range(_STEPS + 1)])


def _map(grid: CellGrid, numbers: dict, *, legend: list[dict] | None = None, layout: dict | None = None) -> go.Figure:
    """Return the numbers, failures in words below them, and invisible squares above that say more under the pointer."""
    marks = [[None if grid.known(row) else 0 if is_empty(row) else 1 for row in line] for line in grid.lines()]
    texts = [["" if grid.known(row) else _broken(failure(row)) for row in line] for line in grid.lines()]
    failures = {
        "z": marks,
        "text": texts,
        "colorscale": [(0, EMPTY_COLOUR), (1, FAILED_COLOUR)],
        "zmin": 0,
        "zmax": 1,
        "textfont": {"size": 11},
        "showscale": False,
    }
    common = {"type": "heatmap", "x": grid.x, "y": grid.y, "xgap": 2, "ygap": 2, "hoverinfo": "skip"}
    common["texttemplate"] = "%{text}"
    axis = {"type": "category", "showgrid": False, "fixedrange": True}
    return go.Figure(
        {
            "data": [common | numbers, *(legend or ()), common | failures, _squares(grid)],
            "layout": {
                "xaxis": axis | {"title": {"text": grid.level.rows.label}, "range": [-0.5, len(grid.x) - 0.5]},
                "yaxis": axis | {"title": {"text": grid.level.columns.label}, "range": [len(grid.y) - 0.5, -0.5]},
                "height": 104 + 40 * len(grid.y) + 34 * bool(legend),
                "margin": CAMERA_MARGIN,
                "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, **_UNCLICKABLE},
                "dragmode": False,
                **(layout or {}),
            },
        }
    )


def _squares(grid: CellGrid) -> dict:
    places = list(grid.places())
    return {
        "type": "scatter",
        "x": [x for x, _, _ in places],
        "y": [y for _, y, _ in places],
        "mode": "markers",
        "marker": {"size": 34, "symbol": "square", "opacity": 0.001},
        "customdata": [row["hover"] if row else "not measured" for _, _, row in places],
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": False,
    }


def _broken(words: str) -> str:
    return words.replace(" ", "<br>")


def _sizes(table: Sequence[dict], name: str) -> list[int | None]:
    """Return the sizes of an axis in order; a size that the source did not say comes last."""
    return sorted({_whole(row[name]) for row in table}, key=lambda size: (size is None, size))


def _whole(number: object) -> int | None:
    return None if text.missing(number) else int(number)
