"""Which cell of a map is looked at: by a click, from a list that the keyboard reaches, or from the link."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui import words

Place = tuple[str | None, int, int | None]  # dtype, seqlen, head_dim
_KEY, _CLICKED = "cell", "cell_clicked"


def pick(table: pd.DataFrame, clicked: Place | None) -> Place | None:
    """The chosen cell of a table of cells; a new click goes before what was chosen earlier."""
    rows = table[["dtype", "seqlen", "head_dim"]].drop_duplicates().itertuples(index=False)
    places = {_label(place): place for row in rows if (place := _place(*row))}
    if clicked != st.session_state.get(_CLICKED):
        st.session_state[_CLICKED] = clicked
        if clicked:
            st.session_state[_KEY] = _label(clicked)
    if st.session_state.get(_KEY) not in places and _KEY in st.session_state:
        st.session_state[_KEY] = None
    chosen = st.selectbox(
        "Cell",
        list(places),
        index=None,
        key=_KEY,
        bind="query-params",
        placeholder="Select a cell in the map, or choose one here",
        help="Shows every implementation's numbers, samples, run and environment of one cell.",
    )
    return places.get(chosen)


def _place(dtype: object, seqlen: object, head_dim: object) -> Place | None:
    if words.missing(seqlen):
        return None
    return None if words.missing(dtype) else str(dtype), int(seqlen), None if words.missing(head_dim) else int(head_dim)


def _label(place: Place) -> str:
    dtype, seqlen, head_dim = place
    return f"{dtype or 'dtype not said'}, seqlen {seqlen}, head_dim {'not said' if head_dim is None else head_dim}"
