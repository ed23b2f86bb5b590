"""The part of a page that depends on the filters, and is redrawn without the rest of the page."""

from collections.abc import Callable

import streamlit as st

from pages.ui.shell import address
from pages.ui.shell.data import store

_KEY = "body"
_DRAWN = "body_drawn"


def show(draw: Callable[[], None]) -> None:
    """Draw the body as a fragment; its widgets and `again` redraw only the fragment."""
    st.session_state[_DRAWN] = True
    st.fragment(_draw, key=_KEY)(draw)


def none_yet() -> None:
    """Begin a view: until `show`, every change redraws the page."""
    st.session_state[_DRAWN] = False


def again(*others: str) -> None:
    """Redraw the body and these fragments, or all of a page without a body; for the callback of a widget."""
    st.rerun([*others, _KEY] if st.session_state.get(_DRAWN) else "app")


def _draw(draw: Callable[[], None]) -> None:
    store(not_older_than_s=0.2)  # a redrawn fragment also shows new data; a whole page has looked just now
    draw()
    address.write()
