"""The part of a page that follows the filters: drawn again without the rest where nothing else depends on a change."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages.ui.shell import address
from pages.ui.shell.data import store

_KEY = "body"
_DRAWN = "body_drawn"


def show(draw: Callable[[], None]) -> None:
    """Draw it as a fragment; what is in it and `again` draw it alone."""
    st.session_state[_DRAWN] = True
    st.fragment(_draw, key=_KEY)(draw)


def none_yet() -> None:
    """Begin a view: until `show`, every change draws everything."""
    st.session_state[_DRAWN] = False


def again(*others: str) -> None:
    """Draw the body and those other fragments again, and all of a page without a body; for the callback of a widget."""
    st.rerun([*others, _KEY] if st.session_state.get(_DRAWN) else "app")


def _draw(draw: Callable[[], None]) -> None:
    store()  # alone it is drawn with what is new, too
    draw()
    address.write()
