"""That every page is drawn inside app.py, with its navigation and filters."""

from __future__ import annotations

import streamlit as st

_FRAMED = "framed"


def enter() -> None:
    """Called by app.py: from here on this session is framed."""
    st.session_state[_FRAMED] = True


def require() -> None:
    """Run app.py around this page if it was run alone.

    Until the first st.navigation of a server's life Streamlit takes a folder named `pages` for its old way of listing
    pages, and runs a page that is linked to directly without app.py (1.67: PagesManager.uses_pages_directory). Any
    st.navigation that knows this address ends that, and the rerun comes back here through app.py.
    """
    if not st.session_state.get(_FRAMED):
        here = (st.context.url or "").rstrip("/").rsplit("/", 1)[-1] or "page"
        st.navigation([st.Page(_nothing, default=True), st.Page(_nothing, url_path=here)], position="hidden")
        st.rerun()


def _nothing() -> None:
    """A page that is never drawn."""
