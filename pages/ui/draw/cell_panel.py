"""The panel of a chosen cell, next to the map if there is room, else below it."""

from __future__ import annotations

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
    css=".head { display: flex; align-items: start; justify-content: space-between; gap: 0.5rem; }"
    "h3 { margin: 0; font: 600 1.1rem var(--st-font); color: var(--st-text-color); }"
    "h3:focus-visible, button:focus-visible { outline: 3px solid var(--st-primary-color); outline-offset: 2px; }"
    "button { min-width: 2rem; min-height: 2rem; border: 0; border-radius: 0.3rem; background: none;"
    " color: var(--st-text-color); font-size: 1rem; cursor: pointer; }",
)
# The elements of Streamlit's row are wrappers. In a wide window the panel stays in view while the page scrolls.
_SIDES = """<style>
:has(> .st-key-map_side) { flex: 1 1 30rem; min-width: min(100%, 20rem); }
:has(> .st-key-cell_panel) { flex: 1 1 24rem; min-width: min(100%, 20rem); }
.st-key-cell_panel { scroll-margin-top: 4rem; }
@media (min-width: 1200px) {
  :has(> .st-key-cell_panel) { position: sticky; top: 4rem; align-self: flex-start; max-height: calc(100vh - 5rem);
    overflow-y: auto; }
}
</style>"""


@contextmanager
def around(chosen: Filters, table: Sequence[dict]) -> Iterator[None]:
    """Draw the map of the `with` block, the list of its cells below, and the chosen cell in detail next to both."""
    level = level_in(chosen)
    st.html(_SIDES)
    sides = st.container(horizontal=True, key="map_and_cell")
    with sides.container(key="map_side"):
        yield
        place = maps.pick(level, table)
    if place:
        with sides.container(key="cell_panel", border=True):
            title = maps.label(level, place)
            _head(data={"title": title}, key=_KEY, on_close_change=maps.drop)
            detail.cell_detail(chosen, place)
