"""Maps of cells as figures that can be saved: seqlen down, head_dim across, and what to say where there is no number.

A figure is handed to Plotly whole: each later change of one costs as much again as making it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import plotly.graph_objects as go
from plotly.colors import diverging, sample_colorscale

from pages.ui.draw import text
from pages.ui.draw.charts import CAMERA_MARGIN, EMPTY_COLOUR

FAILED_COLOUR = "#4a4f57"
CLIP = 3  # colours end at 1/8x and 8x; the text shows the real number
SPEEDUP_SCALE = diverging.PuOr
SPEEDUP_TICKS = {-3: "⅛×", -2: "¼×", -1: "½×", 0: "1×", 1: "2×", 2: "4×", 3: "8×"}  # by log2 of the speedup
_SHADES = sample_colorscale(SPEEDUP_SCALE, [step / 120 for step in range(121)])  # finding one shade takes long
_UNCLICKABLE = {"itemclick": False, "itemdoubleclick": False}


def speedup_heatmap(cells: list[dict], seqlens: list[int], head_dims: list[int]) -> go.Figure:
    """Return a map of speedups: log2 colours around 1x, the number in each cell, failures in words."""
    grid = CellGrid(cells, seqlens, head_dims)
    numbers = {
        "z": grid.values("speedup", lambda row: _clipped(row["speedup"]), None),
        "text": grid.values("speedup", lambda row: text.ratio(row["speedup"]), ""),
        "coloraxis": "coloraxis",
    }
    ticks = {"tickvals": list(SPEEDUP_TICKS), "ticktext": list(SPEEDUP_TICKS.values())}
    bar = {"thickness": 10, "outlinewidth": 0, **ticks}
    axis = {"colorscale": SPEEDUP_SCALE, "cmin": -CLIP, "cmax": CLIP, "colorbar": bar}
    return _map(grid, numbers, layout={"coloraxis": axis})


def winner_map(
    cells: list[dict], seqlens: list, head_dims: list, palette: dict[str, str], names: list[str]
) -> go.Figure:
    """Return a map of the fastest implementation as colour, paler where it is a tie, and its speedup as text."""
    grid = CellGrid(cells, seqlens, head_dims)
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


def speedup_colour(speedup: float) -> str:
    """Return the colour of a speedup, by its log2 around 1x."""
    return _SHADES[round(120 * (_clipped(speedup) + CLIP) / (2 * CLIP))]


def winner_colour(palette: dict[str, str], name: str, tie: bool) -> str:
    """Return the colour of an implementation; of a tie two thirds of the way to white."""
    if not tie:
        return palette[name]
    return "#" + "".join(f"{(int(palette[name][i : i + 2], 16) + 2 * 255) // 3:02x}" for i in (1, 3, 5))


class CellGrid:
    """Rows by their place; `shown` is missing of a row that has no number to show."""

    def __init__(self, cells: Iterable[dict], seqlens: list[int | None], head_dims: list[int | None]) -> None:
        self.seqlens, self.head_dims = seqlens, head_dims
        self.x, self.y = [text.size(n) if n is None else str(n) for n in head_dims], [text.size(n) for n in seqlens]
        self.rows = {(_whole(row["seqlen"]), _whole(row["head_dim"])): row for row in cells}

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
        return [[self.rows.get((s, d)) for d in self.head_dims] for s in self.seqlens]


def is_empty(row: dict | None) -> bool:
    """Return whether nothing was measured there, which is not a failure."""
    return row is None or text.missing(row["status"])


def failure(row: dict | None) -> str:
    """Say in a word or two why there is no number."""
    return "not measured" if row is None else row.get("failure") or text.status(row.get("status"))


def _clipped(speedup: float) -> float:
    return max(-CLIP, min(CLIP, math.log2(speedup)))


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
                "xaxis": axis | {"title": {"text": "head_dim"}, "range": [-0.5, len(grid.x) - 0.5]},
                "yaxis": axis | {"title": {"text": "seqlen"}, "range": [len(grid.y) - 0.5, -0.5]},
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


def _whole(number: object) -> int | None:
    return None if text.missing(number) else int(number)
