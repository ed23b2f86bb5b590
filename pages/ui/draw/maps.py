"""Maps of cells: one HTML table for each dtype, drawn by maps.js, and the cell that the reader chose.

The browser saves a map as PNG from the drawn tables.
"""

import html
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamlit as st

from pages.ui.draw import cells, colours, text
from pages.ui.draw.titles import ChartTitle
from pages.ui.shell import address
from results.levels import Level

_HERE = Path(__file__).parent
_draw = st.components.v2.component(
    "attnbench.maps",
    js=(_HERE / "maps.js").read_text(encoding="utf-8"),
    css=(_HERE / "maps.css").read_text(encoding="utf-8"),
)
Place = tuple[str | None, int, int | None]  # dtype, and the sizes on the two axes of the level
_NOTHING = ["not measured"]
_KEY = "cell"


@dataclass(frozen=True)
class Look:
    """Colors and texts of the cells with a number, and the legend of the colors."""

    colour: Callable[[dict], str]
    text: Callable[[dict], str]
    below: Callable[[dict], str] = lambda row: ""  # a second line, drawn where cells are wide enough
    legend: Sequence[tuple[str, str]] = ()  # name and color
    # A color bar: `colours` from left to right, `ticks` below them, and the bar's `name` above them.
    scale: Mapping[str, Sequence[str]] | None = None
    hatched: frozenset[str] = frozenset((cells.DOUBT,))  # marks whose cells are hatched
    named: bool = False  # whether the cells hold names, which need more room than numbers
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # short name and color of all that can be hidden


@dataclass(frozen=True)
class MapAxis:
    """An axis of a map: a column of the table, its label, its values in order, and their words."""

    column: str
    label: str
    values: Sequence[Any]
    write: Callable[[Any], str]


def speedups(table: Sequence[dict], baseline: str | None) -> Look:
    """Color the speedups of a table by their log2 around 1x."""
    found = colours.speedup_scale(row["speedup"] for row in table)
    name = f"Speedup over {baseline}, on a log scale"
    scale = {"colours": list(found.colours), "ticks": found.ticks, "name": name}
    hatched = frozenset((cells.TIE, cells.DOUBT))
    return Look(lambda row: found.colour(row["speedup"]), lambda row: row["label"], scale=scale, hatched=hatched)


def winners(palette: dict[str, str], names: Sequence[str]) -> Look:
    """Name the fastest implementation and its lead in each cell, in a fuller color for a larger lead.

    An implementation without a rival is the palest, because it has won nothing. The legend hides implementations of
    the palette, and the browser ranks the others again.
    """
    full = {name: colours.winner_colour(palette, name, None) for name in palette}
    return Look(
        lambda row: colours.winner_colour(palette, row["winner"], max(1.0, row["margin"] or 1.0)),
        lambda row: row["label"],
        below=lambda row: row["below"],
        legend=[(name, full[name]) for name in names],
        named=True,
        names={name: (text.short(name), colour) for name, colour in full.items()},
    )


def show(
    level: Level,
    table: Sequence[dict],
    look: Look,
    key: str,
    alt: str,
    *,
    selectable: bool = False,
    title: ChartTitle | None = None,
    across: MapAxis | None = None,
    down: MapAxis | None = None,
) -> None:
    """Draw one map for each dtype, side by side where there is room.

    A selectable map sets the chosen cell. A map with a title can be saved as a picture. `across` and `down`
    replace the axes of the level.
    """
    across = across or _axis(level.rows.column, level.rows.label, table, str)
    down = down or _axis(level.columns.column, level.columns.label, table, text.size)
    chosen: dict[str, Any] = {"on_cell_change": lambda: take(st.session_state[key].get("cell"))} if selectable else {}
    marks = {row.get("mark") for row in table}
    data = {
        "facets": [
            {"title": name, "alt": f"{alt}, {name}", "cells": _lines(level, dtype, rows, down, across, look)}
            for dtype, name, rows in cells.by_dtype(table)
        ],
        "corner": f"{down.label} \\ {across.label}",
        "rows": [down.write(value) for value in down.values],
        "columns": [across.write(value) for value in across.values],
        "legend": list(look.legend),
        "marks": [[mark, meaning] for mark, meaning in cells.MARKS.items() if mark in marks],
        "named": look.named,
        "ranked": {"names": look.names, "palest": colours.PALEST, "full_margin": colours.FULL_MARGIN},
        "scale": look.scale,
        "selectable": selectable,
        "selected": chosen_cell() if selectable else None,
        "picture": title and {"lines": [*title.names, *title.lines], "bold": len(title.names), "file": title.file_name},
    }
    _draw(key=key, data=data, **chosen)


def _axis(column: str, label: str, table: Iterable[Mapping], write: Callable[[Any], str]) -> MapAxis:
    """Return an axis with the sizes of a table in order; a size that the source does not state comes last."""
    sizes = sorted({_whole(row[column]) for row in table}, key=lambda size: (size is None, size))
    return MapAxis(column, label, sizes, lambda size: text.size(size) if size is None else write(size))


def _lines(
    level: Level, dtype: str | None, rows: Iterable[dict], down: MapAxis, across: MapAxis, look: Look
) -> list[list[dict]]:
    """Return the cells of one dtype line by line, as maps.js draws them."""
    found = {(_whole(row[down.column]), _whole(row[across.column])): row for row in rows}
    return [[_cell(level, found.get((y, x)), dtype, look) for x in across.values] for y in down.values]


def _cell(level: Level, row: dict | None, dtype: str | None, look: Look) -> dict:
    known = row is not None and not text.missing(row.get("shown"))
    nothing = row is None or text.missing(row["status"])
    behind = colours.NOTHING_COLOUR if nothing else colours.FAILED_COLOUR
    colour = look.colour(row) if known else behind[colours.theme()]
    at = None if row is None else place(dtype, *level.place(row))
    return {
        "text": look.text(row) if known else failure(row),
        "below": look.below(row) if known else "",
        "known": known,
        "colour": colour,
        "ink": colours.ink(colour),
        "hatched": known and row.get("mark") in look.hatched,
        "note": _NOTHING if row is None else [html.unescape(line) for line in row["hover"].split("<br>")],
        "place": label(level, at) if at else None,
        "order": _order(row, look.names) if row and known and look.names else None,
    }


def _order(row: Mapping[str, Any], names: Collection[str]) -> list[tuple[str, float]]:
    """Return the fastest implementation of a cell and its rivals in order, with their times over its time."""
    rivals = [(rival["implementation"], rival["ratio"]) for rival in row["others"]]
    return [each for each in ((row["winner"], 1.0), *rivals) if each[0] in names]


def failure(row: dict | None) -> str:
    """Return the reason in a word or two for a cell without a number."""
    return "not measured" if row is None else row.get("failure") or text.status(row.get("status"))


def _whole(value: Any) -> Any:
    return None if text.missing(value) else value if isinstance(value, str) else int(value)


def chosen_cell() -> str | None:
    """Return the label of the chosen cell."""
    return address.named(_KEY) or st.session_state.get(_KEY)


def take(found: str | None) -> None:
    """Choose the cell with that label."""
    if found:
        st.session_state[_KEY] = found


def drop() -> None:
    """Choose no cell."""
    st.session_state[_KEY] = None


def pick(level: Level, table: Iterable[dict]) -> Place | None:
    """Return the chosen one of these cells, and let the reader change it in a list; None if it is not here."""
    found = (place(cell["dtype"], *level.place(cell)) for cell in table)
    places = {label(level, one): one for one in found if one}
    linked = None if _KEY in st.session_state else st.query_params.get(_KEY)
    if linked and linked not in places:
        st.caption(f":material/link_off: The link names a shape that is not here: {text.plain(linked[:80])}.")
    if st.session_state.get(_KEY) not in places and _KEY in st.session_state:
        st.session_state[_KEY] = None
    if chosen := st.session_state.get(_KEY):
        address.note(_KEY, chosen)  # Streamlit writes no value that a new widget begins with
    look: dict[str, Any] = {"index": None, "placeholder": "Choose a shape", "bind": "query-params"}
    return places.get(st.selectbox("Shape in detail", list(places), key=_KEY, **look))


def place(dtype: object, length: Any, other: Any) -> Place | None:
    """Return a cell by its sizes; None if the source does not state the length."""
    if text.missing(length):
        return None
    return None if text.missing(dtype) else str(dtype), int(length), None if text.missing(other) else int(other)


def label(level: Level, place: Place) -> str:
    """Return the name of a cell in the list and in the link."""
    dtype, length, other = place
    sizes = f"{level.columns.label} {length}, {level.rows.label} {'not stated' if other is None else other}"
    return f"{dtype or 'dtype not stated'}, {sizes}"
