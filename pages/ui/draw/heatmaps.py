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
from plotly.colors import sample_colorscale, unlabel_rgb

from pages.ui.draw import text
from pages.ui.draw.charts import MARGIN
from pages.ui.draw.titles import ChartTitle
from results.levels import Level

# Behind words, by theme: nearer to the page than any cell with a number.
FAILED_COLOUR = {"light": "#e3e5e9", "dark": "#33353a"}
NOTHING_COLOUR = {"light": "#f4f5f6", "dark": "#202124"}
LIMITS = (1.25, 1.5, 2, 4, 8, 64)  # at which colours may end, either way; the text shows the real number
SLOWER_TO_FASTER = {  # orange, neutral, purple: ends stand out from the page, and one colour of digits suits all
    "light": ("#c26a14", "#e09a4d", "#f2cfa3", "#f5f4f2", "#d3cdea", "#a99bd8", "#8471c4"),
    "dark": ("#ad5d0d", "#8f5316", "#5f4126", "#3a3835", "#474166", "#5d5092", "#7a68bd"),
}
LESS_TO_MORE = {  # of a share of 100 %: what is little is near to the page
    "light": ("#f1f5fa", "#9ecae1", "#4292c6", "#08519c"),
    "dark": ("#20262e", "#1d4f7c", "#3d86c6", "#a9d3f5"),
}
_PAPER = {"light": "#ffffff", "dark": "#171614"}
_INK_LIMIT = {"light": 0.20, "dark": 0.16}  # relative luminance up to which black, or white, has 4.5:1 and more
_FULL_MARGIN = 1.5  # a lead from which on a winner's colour is as full as it gets
_PALEST = 0.3
_STEPS = 120


@dataclass(frozen=True)
class SpeedupScale:
    """Colours of speedups by their log2, symmetric around 1x."""

    limit: float  # the speedup at which colours end, and 1 over it
    colours: tuple[str, ...]

    @property
    def ticks(self) -> dict[float, str]:
        """Return what stands under the colours, by where: -1 at the left end, 1 at the right one."""
        return {place: _tick(self.limit**place) for place in (-1.0, -0.5, 0.0, 0.5, 1.0)}

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
    return SpeedupScale(limit, SLOWER_TO_FASTER[theme()])


def share_colour(percent: float) -> str:
    """Return the colour of a share on the theme of the page; above 100 % as at 100 %."""
    return _shades(LESS_TO_MORE[theme()])[round(_STEPS * max(0.0, min(100.0, percent)) / 100)]


def share_scale() -> dict[str, list[str]]:
    """Return the colours of shares from 0 to 100 % with their ticks, as a map draws them below it."""
    return {"colours": [share_colour(at) for at in range(0, 101, 5)], "ticks": ["0 %", "25 %", "50 %", "75 %", "100 %"]}


def theme() -> str:
    """Return the theme of the page, light or dark."""
    return st.context.theme.type or "light"


def speedup_heatmap(grid: CellGrid, baseline: str | None) -> go.Figure:
    """Return a map of speedups: log2 colours around 1x, the number in each cell, failures in words."""
    found = speedup_scale(row.get("speedup") for row in grid.rows.values())
    numbers = {
        "z": grid.values("speedup", lambda row: found.place(row["speedup"]), None),
        "text": grid.values("speedup", lambda row: row["label"], ""),
        "coloraxis": "coloraxis",
    }
    ticks = {"tickvals": list(found.ticks), "ticktext": list(found.ticks.values())}
    title = {"text": f"speedup over<br>{text.label(baseline)}", "side": "top"}
    bar = {"thickness": 10, "outlinewidth": 0, "title": title, **ticks}
    axis = {"colorscale": found.colours, "cmin": -1, "cmax": 1, "colorbar": bar}
    return _map(grid, numbers, layout={"coloraxis": axis})


def winner_map(grid: CellGrid, palette: dict[str, str]) -> go.Figure:
    """Return a map of the fastest implementation: its name and lead in each cell, the fuller the colour the more."""
    drawn = list(dict.fromkeys(_colour_of(row, palette) for row in grid.rows.values() if grid.known(row)))
    scale = drawn or [NOTHING_COLOUR[theme()]]
    numbers = {
        "z": grid.values("winner", lambda row: scale.index(_colour_of(row, palette)) + 0.5, None),
        "text": grid.values("winner", lambda row: f"{text.label(row['label'])}<br>{text.label(row['below'])}", ""),
        "colorscale": [(edge / len(scale), colour) for i, colour in enumerate(scale) for edge in (i, i + 1)],
        "zmin": 0,
        "zmax": len(scale),
        "showscale": False,
    }
    return _map(grid, numbers)


def _colour_of(row: dict, palette: dict[str, str]) -> str:
    return winner_colour(palette, row["winner"], row["margin"])


def winner_colour(palette: dict[str, str], name: str, margin: float | None) -> str:
    """Return the colour of an implementation, paler the less it is ahead of the next best.

    All shades of a theme are read with one colour of digits: black on light ones, white on dark ones.
    """
    lead = 1.0 if text.missing(margin) else math.log(max(1.0, margin)) / math.log(_FULL_MARGIN)
    return mixed(_PAPER[theme()], _full(palette[name], theme()), _PALEST + (1 - _PALEST) * min(1.0, lead))


@cache
def _full(colour: str, theme: str) -> str:
    """Return the fullest shade of a colour that the theme's digits are read on."""
    towards = "#ffffff" if theme == "light" else "#000000"
    shades = (mixed(colour, towards, step / 20) for step in range(21))
    limit = _INK_LIMIT[theme]
    return next(s for s in shades if (luminance(s) >= limit if theme == "light" else luminance(s) <= limit))


def mixed(colour: str, other: str, share: float) -> str:
    """Return a colour with that share of another in it, both #rrggbb."""
    parts = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in parts)


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2 of `#rrggbb` or `rgb(r, g, b)`."""
    hexadecimal = colour.startswith("#")
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)] if hexadecimal else unlabel_rgb(colour)
    linear = [p / 255 / 12.92 if p <= 10.31 else ((p / 255 + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def ink(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour: never under 4.5:1."""
    return "#000000" if (luminance(colour) + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


def titled(figure: go.Figure, title: ChartTitle) -> go.Figure:
    """Return a map with its title above it, so that a saved picture says what it is."""
    above = figure.layout.margin.t + title.height
    return figure.update_layout(title=title.layout, height=figure.layout.height + title.height, margin_t=above)


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


def _tick(speedup: float) -> str:
    """Write 8× and 1/8×, and what is within a factor of two as a decimal."""
    if 0.5 < speedup < 2:
        return f"{speedup:.3g}×"
    return f"{speedup:.3g}×" if speedup > 1 else f"1/{1 / speedup:.3g}×"


def _map(grid: CellGrid, numbers: dict, *, layout: dict | None = None) -> go.Figure:
    """Return the numbers, failures in words below them, and invisible squares above that say more under the pointer."""
    marks = [[None if grid.known(row) else 0 if is_empty(row) else 1 for row in line] for line in grid.lines()]
    texts = [["" if grid.known(row) else _broken(failure(row)) for row in line] for line in grid.lines()]
    failures = {
        "z": marks,
        "text": texts,
        "colorscale": [(0, NOTHING_COLOUR[theme()]), (1, FAILED_COLOUR[theme()])],
        "zmin": 0,
        "zmax": 1,
        "textfont": {"size": 11, "color": ink(NOTHING_COLOUR[theme()])},
        "showscale": False,
    }
    common = {"type": "heatmap", "x": grid.x, "y": grid.y, "xgap": 2, "ygap": 2, "hoverinfo": "skip"}
    common |= {"texttemplate": "%{text}", "textfont": {"color": ink(NOTHING_COLOUR[theme()])}}
    axis = {"type": "category", "showgrid": False, "fixedrange": True}
    return go.Figure(
        {
            "data": [common | numbers, common | failures, _squares(grid)],
            "layout": {
                "xaxis": axis | {"title": {"text": grid.level.rows.label}, "range": [-0.5, len(grid.x) - 0.5]},
                "yaxis": axis | {"title": {"text": grid.level.columns.label}, "range": [len(grid.y) - 0.5, -0.5]},
                "height": 104 + 40 * len(grid.y),
                "margin": MARGIN,
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
