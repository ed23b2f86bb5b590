"""Which cell of a map is looked at: by a click, from a list that the keyboard reaches, or from the link."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from pages.ui.draw import text

Place = tuple[str | None, int, int | None]  # dtype, seqlen, head_dim
_KEY = "cell"


def chosen() -> str | None:
    """Return the label of the chosen cell, as this run of the script found it."""
    return st.session_state.get(_KEY, st.query_params.get(_KEY))


def take(found: str | None) -> None:
    """Choose the cell with that label."""
    if found:
        st.session_state[_KEY] = found


def pick(cells: Iterable[dict]) -> Place | None:
    """The chosen one of these cells, from the list of them all."""
    found = (place(cell["dtype"], cell["seqlen"], cell["head_dim"]) for cell in cells)
    places = {label(one): one for one in found if one}
    if st.session_state.get(_KEY) not in places and _KEY in st.session_state:
        st.session_state[_KEY] = None
    return places.get(
        st.selectbox(
            "Cell",
            list(places),
            index=None,
            key=_KEY,
            bind="query-params",
            placeholder="Select a cell in the map, or choose one here",
            help="Shows every implementation's numbers, samples, run and environment of one cell.",
        )
    )


def place(dtype: object, seqlen: object, head_dim: object) -> Place | None:
    """A cell by its sizes; a sequence length that the source did not say is no place."""
    if text.missing(seqlen):
        return None
    return None if text.missing(dtype) else str(dtype), int(seqlen), None if text.missing(head_dim) else int(head_dim)


def label(place: Place) -> str:
    """A cell in words, as the list and the link have it."""
    dtype, seqlen, head_dim = place
    return f"{dtype or 'dtype not said'}, seqlen {seqlen}, head_dim {'not said' if head_dim is None else head_dim}"
