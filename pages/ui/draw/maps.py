"""Maps of cells as the page draws them: a table a dtype, drawn by maps.js, with the colours that the pictures have."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from pages.ui.draw import cell_picker, cells, heatmaps
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
    # `colours` from left to right, `ticks` under them, and the bar's `name` above them
    scale: dict[str, list[str] | str] | None = None
    hatched: frozenset[str] = frozenset((cells.DOUBT,))  # marks of cells whose colour says little
    named: bool = False  # whether the cells hold names, which need more room than numbers


def speedups(table: Sequence[dict], baseline: str | None) -> Look:
    """Colour the speedups of a table by their log2 around 1x, on a scale as wide as they need."""
    found = heatmaps.speedup_scale(row["speedup"] for row in table)
    name = f"Speedup over {baseline}, on a log scale"
    scale = {"colours": list(found.colours), "ticks": list(found.ticks.values()), "name": name}
    hatched = frozenset((cells.TIE, cells.DOUBT))
    return Look(lambda row: found.colour(row["speedup"]), lambda row: row["label"], scale=scale, hatched=hatched)


def winners(palette: dict[str, str], names: Sequence[str]) -> Look:
    """Name the fastest implementation in each cell and by how much it leads, in a colour that is fuller the more."""
    return Look(
        lambda row: heatmaps.winner_colour(palette, row["winner"], row["margin"]),
        lambda row: row["label"],
        below=lambda row: row["below"],
        legend=[(name, heatmaps.winner_colour(palette, name, None)) for name in names],
        named=True,
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
        "marks": [[mark, meaning] for mark, meaning in cells.MARKS.items() if mark in {r.get("mark") for r in table}],
        "named": look.named,
        "scale": look.scale,
        "selectable": selectable,
        "selected": cell_picker.chosen() if selectable else None,
    }
    _draw(key=key, data=data, **chosen)


def _cells(grid: CellGrid, dtype: str | None, look: Look) -> list[list[dict]]:
    return [[_cell(grid.level, row, dtype, look) for row in line] for line in grid.lines()]


def _cell(level: Level, row: dict | None, dtype: str | None, look: Look) -> dict:
    known = CellGrid.known(row)
    behind = heatmaps.NOTHING_COLOUR if is_empty(row) else heatmaps.FAILED_COLOUR
    colour = look.colour(row) if known else behind[heatmaps.theme()]
    place = None if row is None else cell_picker.place(dtype, *level.place(row))
    return {
        "text": look.text(row) if known else failure(row),
        "below": look.below(row) if known else "",
        "known": known,
        "colour": colour,
        "ink": heatmaps.ink(colour),
        "hatched": known and row.get("mark") in look.hatched,
        "note": _NOTHING if row is None else [html.unescape(line) for line in row["hover"].split("<br>")],
        "place": cell_picker.label(level, place) if place else None,
    }
