"""The maps of cells, and the colours and marks all charts share. No figure decides what is compared with what.

A figure is handed to Plotly whole: each later change of one costs as much again as making it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pandas as pd
import plotly.graph_objects as go

from pages.ui import words

# Okabe and Ito's palette, which people with a colour vision deficiency can tell apart, and further tones of it.
COLOURS = {
    "torch_naive": "#7f7f7f",
    "torch_sdpa_auto": "#56b4e9",
    "torch_sdpa_flash": "#0072b2",
    "torch_sdpa_cudnn": "#009e73",
    "torch_sdpa_efficient": "#cc79a7",
    "torch_sdpa_math": "#a6761d",
    "triton_fa2": "#e69f00",
    "triton_fa2_tf32": "#d55e00",
    "gluon_hopper": "#6a3d9a",
    "torch_flex": "#66a61e",
}
SPARE_COLOURS = ("#1b7fb5", "#d95f0e", "#31a354", "#c51b8a", "#8c6bb1", "#7f7f7f", "#e6ab02", "#41b6c4", "#a63603")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon")
FAILED_COLOUR = "#4a4f57"
EMPTY_COLOUR = "#8a8f98"
CLIP = 3  # colours end at 1/8x and 8x; the text shows the real number
UNCLICKABLE = {"itemclick": False, "itemdoubleclick": False}
MARGIN = {"l": 0, "r": 0, "t": 8, "b": 0}


def colours(implementations: list[str]) -> dict[str, str]:
    """A colour for each name: fixed for those of this repository, in order from the spare ones for others."""
    others = sorted(set(implementations) - set(COLOURS))
    return COLOURS | {name: SPARE_COLOURS[i % len(SPARE_COLOURS)] for i, name in enumerate(others)}


def speedup_heatmap(cells: pd.DataFrame, seqlens: list[int], head_dims: list[int]) -> go.Figure:
    """Speedup by seqlen and head_dim: log2 colours around 1x, the number in each cell, failures in words."""
    grid = _Grid(cells, seqlens, head_dims)
    numbers = {
        "z": grid.values("speedup", lambda row: max(-CLIP, min(CLIP, math.log2(row["speedup"]))), None),
        "text": grid.values("speedup", lambda row: words.ratio(row["speedup"]), ""),
        "coloraxis": "coloraxis",
    }
    ticks = {"tickvals": [-3, -2, -1, 0, 1, 2, 3], "ticktext": ["⅛×", "¼×", "½×", "1×", "2×", "4×", "8×"]}
    bar = {"thickness": 10, "outlinewidth": 0, **ticks}
    axis = {"colorscale": "PuOr", "cmin": -CLIP, "cmax": CLIP, "colorbar": bar}
    return _map(grid, numbers, layout={"coloraxis": axis})


def winner_map(
    cells: pd.DataFrame, seqlens: list, head_dims: list, palette: dict[str, str], names: list[str]
) -> go.Figure:
    """The fastest implementation as colour, paler where it is a tie, and its speedup as text."""
    grid = _Grid(cells, seqlens, head_dims)
    keys = [(name, tie) for name in names for tie in (False, True)]
    scale = [_pale(palette[name]) if tie else palette[name] for name, tie in keys] or [EMPTY_COLOUR]
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


def _pale(colour: str) -> str:
    """Two thirds of the way to white."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)


class _Grid:
    """Rows of a table laid out by seqlen (down) and head_dim (across), and what to write where there is no number."""

    def __init__(self, cells: pd.DataFrame, seqlens: list[int], head_dims: list[int]) -> None:
        self.seqlens, self.head_dims = seqlens, head_dims
        self.x, self.y = [words.size(n) if n is None else str(n) for n in head_dims], [words.size(n) for n in seqlens]
        self.rows = {(_whole(row["seqlen"]), _whole(row["head_dim"])): row for row in cells.to_dict("records")}

    def values(self, needed: str, value: Callable[[dict], object], otherwise: object) -> list[list]:
        """`value(row)` of each cell that has the needed column, something else elsewhere."""

        def of(row: dict | None) -> object:
            return otherwise if row is None or words.missing(row[needed]) else value(row)

        return [[of(row) for row in line] for line in self.lines()]

    def failures(self) -> tuple[list[list], list[list]]:
        """Where there is no number: 1 for a failure and 0 for nothing measured, and the words."""
        marks, texts = [], []
        for line in self.lines():
            shown = [row is not None and not words.missing(row.get("shown")) for row in line]
            empty = [row is None or words.missing(row["status"]) for row in line]
            marks.append([None if ok else 0 if gap else 1 for ok, gap in zip(shown, empty, strict=True)])
            texts.append(["" if ok else _broken(_failure(row)) for row, ok in zip(line, shown, strict=True)])
        return marks, texts

    def places(self) -> Iterator[tuple[str, str, dict | None]]:
        """Every cell: its two labels and its row."""
        for y, line in zip(self.y, self.lines(), strict=True):
            for x, row in zip(self.x, line, strict=True):
                yield x, y, row

    def lines(self) -> list[list[dict | None]]:
        """The rows as they lie on the page."""
        return [[self.rows.get((_whole(s), _whole(d))) for d in self.head_dims] for s in self.seqlens]


def _map(grid: _Grid, numbers: dict, *, legend: list[dict] | None = None, layout: dict | None = None) -> go.Figure:
    """The numbers, failures in words below them, and invisible squares above: a heatmap's own cells take no click."""
    marks, texts = grid.failures()
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
                "height": 80 + 40 * len(grid.y) + 34 * bool(legend),
                "margin": MARGIN,
                "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, **UNCLICKABLE},
                "dragmode": False,
                **(layout or {}),
            },
        }
    )


def _squares(grid: _Grid) -> dict:
    places = list(grid.places())
    nothing = ["not measured", None, None]
    return {
        "type": "scatter",
        "x": [x for x, _, _ in places],
        "y": [y for _, y, _ in places],
        "mode": "markers",
        "marker": {"size": 34, "symbol": "square", "opacity": 0.001},
        "customdata": [
            [row["hover"], _whole(row["seqlen"]), _whole(row["head_dim"])] if row else nothing for _, _, row in places
        ],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
        "showlegend": False,
    }


def _failure(row: dict | None) -> str:
    return "not measured" if row is None else row.get("failure") or words.status(row.get("status"))


def _broken(text: str) -> str:
    return text.replace(" ", "<br>")


def _whole(number: object) -> int | None:
    return None if words.missing(number) else int(number)
