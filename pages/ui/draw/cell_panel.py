"""The panel of a chosen cell, next to the map if there is room, else below it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from pages.ui.draw import detail, maps
from results.slice import Filters, level_in

_HERE = Path(__file__).parent
_KEY = "cell_head"
_head = st.components.v2.component(
    "attnbench.cell_head",
    html='<div class="head"><h3 tabindex="-1"></h3><button type="button" aria-label="Close">✕</button></div>',
    js=(_HERE / "cell_panel.js").read_text(encoding="utf-8"),
    css=(_HERE / "cell_head.css").read_text(encoding="utf-8"),
)


@contextmanager
def around(chosen: Filters, table: Sequence[dict]) -> Iterator[None]:
    """Draw the map of the `with` block, and the chosen cell in detail next to it, below a list of all cells."""
    level = level_in(chosen)
    sides = st.container(horizontal=True, key="map_and_cell")
    with sides.container(key="map_side"):
        yield
    if maps.chosen_cell():
        with sides.container(key="cell_panel", border=True):
            place = maps.pick(level, table)
            if place is None:
                return
            title = maps.label(level, place)
            _head(data={"title": title}, key=_KEY, on_close_change=maps.drop)
            detail.cell_detail(chosen, place)
