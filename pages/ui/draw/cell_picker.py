"""Which cell of a map is looked at: by a click, from a list that the keyboard reaches, or from the link."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from pages.ui.draw import text
from results.levels import Level

Place = tuple[str | None, int, int | None]  # dtype, and where it stands on the two axes of its level
_KEY = "cell"


def chosen() -> str | None:
    """Return the label of the chosen cell, as this run of the script found it."""
    return st.session_state.get(_KEY, st.query_params.get(_KEY))


def take(found: str | None) -> None:
    """Choose the cell with that label."""
    if found:
        st.session_state[_KEY] = found


def drop() -> None:
    """Choose no cell."""
    st.session_state[_KEY] = None


def pick(level: Level, cells: Iterable[dict]) -> Place | None:
    """Ask for one of these cells, from the list of them all; None until one is chosen."""
    found = (place(cell["dtype"], *level.place(cell)) for cell in cells)
    places = {label(level, one): one for one in found if one}
    linked = None if _KEY in st.session_state else st.query_params.get(_KEY)
    if linked and linked not in places:
        st.caption(f":material/link_off: The link names a shape that is not here: {text.plain(linked[:80])}.")
    if st.session_state.get(_KEY) not in places and _KEY in st.session_state:
        st.session_state[_KEY] = None
    return places.get(
        st.selectbox(
            "Shape in detail",
            list(places),
            index=None,
            key=_KEY,
            bind="query-params",
            placeholder="Choose a shape",
            help="Shows every implementation's times, samples, run and environment; so does a click on a map.",
        )
    )


def place(dtype: object, length: object, other: object) -> Place | None:
    """Return a cell by its sizes; None if the source did not say the length."""
    if text.missing(length):
        return None
    return None if text.missing(dtype) else str(dtype), int(length), None if text.missing(other) else int(other)


def label(level: Level, place: Place) -> str:
    """Return a cell in words, as the list and the link have it."""
    dtype, length, other = place
    sizes = f"{level.columns.label} {length}, {level.rows.label} {'not stated' if other is None else other}"
    return f"{dtype or 'dtype not stated'}, {sizes}"
