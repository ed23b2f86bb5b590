"""Maps of cells as the page draws them: a table a dtype, drawn by maps.js, with the colours that the pictures have."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from plotly.colors import unlabel_rgb

from pages.ui.draw import cell_picker, cells, charts, heatmaps, text
from pages.ui.draw.heatmaps import CellGrid, failure, is_empty
from results.levels import Level

_HERE = Path(__file__).parent
_draw = st.components.v2.component(
    "attnbench.maps",
    js=(_HERE / "maps.js").read_text(encoding="utf-8"),
    css=(_HERE / "maps.css").read_text(encoding="utf-8"),
)
_NOTHING = ["not measured"]


@dataclass(frozen=True)
class Look:
    """How the cells with a number are drawn: colour and text of each, and what explains the colours."""

    colour: Callable[[dict], str]
    text: Callable[[dict], str]
    below: Callable[[dict], str] = lambda row: ""  # a second line, where cells are wide enough
    legend: Sequence[tuple[str, str]] = ()  # name and colour
    scale: dict[str, list[str]] | None = None  # colours from left to right, and what stands under them


def speedups(table: Sequence[dict]) -> Look:
    """Colour the speedups of a table by their log2 around 1x, on a scale as wide as they need."""
    found = heatmaps.speedup_scale(row["speedup"] for row in table)
    scale = {"colours": list(found.colours), "ticks": list(found.ticks.values())}
    return Look(lambda row: found.colour(row["speedup"]), lambda row: text.ratio(row["speedup"]), scale=scale)


def winners(palette: dict[str, str], names: Sequence[str]) -> Look:
    """Colour cells by the fastest implementation, paler where it is a tie."""
    return Look(
        lambda row: heatmaps.winner_colour(palette, row["winner"], bool(row["ties"])),
        lambda row: row["label"],
        below=lambda row: row["below"],
        legend=[(name, palette[name]) for name in names],
    )


def show(level: Level, table: Sequence[dict], look: Look, key: str, alt: str, *, selectable: bool = True) -> None:
    """Draw the cells as one map a dtype, side by side where there is room; `cell_picker` says which is chosen."""
    facets = [
        {"title": name, "alt": f"{alt}, {name}", "cells": _cells(CellGrid(level, rows, table), dtype, look)}
        for dtype, name, rows in cells.by_dtype(table)
    ]
    chosen = {"on_cell_change": lambda: cell_picker.take(st.session_state[key].get("cell"))} if selectable else {}
    grid = CellGrid(level, (), table)
    data = {
        "facets": facets,
        "corner": f"{level.columns.label} \\ {level.rows.label}",
        "rows": grid.y,
        "columns": grid.x,
        "legend": list(look.legend),
        "scale": look.scale,
        "selectable": selectable,
        "selected": cell_picker.chosen() if selectable else None,
    }
    _draw(key=key, data=data, **chosen)


def _cells(grid: CellGrid, dtype: str | None, look: Look) -> list[list[dict]]:
    return [[_cell(grid.level, row, dtype, look) for row in line] for line in grid.lines()]


def _cell(level: Level, row: dict | None, dtype: str | None, look: Look) -> dict:
    known = CellGrid.known(row)
    colour = look.colour(row) if known else charts.EMPTY_COLOUR if is_empty(row) else heatmaps.FAILED_COLOUR
    place = None if row is None else cell_picker.place(dtype, *level.place(row))
    return {
        "text": look.text(row) if known else failure(row),
        "below": look.below(row) if known else "",
        "known": known,
        "colour": colour,
        "ink": ink(colour),
        "note": _NOTHING if row is None else [html.unescape(line) for line in row["hover"].split("<br>")],
        "place": cell_picker.label(level, place) if place else None,
    }


def ink(colour: str) -> str:
    """Return black or white, whichever is easier to read on `#rrggbb` or `rgb(r, g, b)`: never under 4.5:1.

    The relative luminance is that of WCAG 2.2.
    """
    hexadecimal = colour.startswith("#")
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)] if hexadecimal else unlabel_rgb(colour)
    linear = [p / 255 / 12.92 if p <= 10.31 else ((p / 255 + 0.055) / 1.055) ** 2.4 for p in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"
