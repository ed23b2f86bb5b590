"""The frame of every page: its header, and that it is drawn inside dashboard.py with navigation and filters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

_FRAMED = "framed"
# Streamlit 1.67 fades a caption with all that is in it, and writes white on the accent colour: neither has 4.5:1.
_CONTRAST = """<style>
[data-testid="stCaptionContainer"] { opacity: 1; color: color-mix(in srgb, currentcolor 70%, transparent); }
[data-testid="stMultiSelect"] span:has(> span[title]) { background-color: #3b5bdb; }
</style>"""


@contextmanager
def around() -> Iterator[None]:
    """Set what dashboard.py draws a page in."""
    st.session_state[_FRAMED] = True
    st.html(_CONTRAST)
    try:
        yield
    finally:
        st.session_state[_FRAMED] = False


def header(title: str, icon: str, question: str) -> None:
    """Draw the page's name, which is also its address, and the question that it answers."""
    _require(title.lower().replace(" ", "_"))
    st.title(title, icon=icon)
    st.caption(question)


def _require(url_path: str) -> None:
    """Run app.py around this page if it was run alone.

    Until the first st.navigation of a server's life Streamlit takes a folder named `pages` for its old way of listing
    pages, and runs a page that is linked to directly without it (1.67: PagesManager.uses_pages_directory). A
    st.navigation that knows this address ends that, and the rerun comes back here through app.py.
    """
    if not st.session_state.get(_FRAMED):
        pages = [st.Page(_nothing, title="attnbench", default=True, url_path="start")]
        st.navigation([*pages, st.Page(_nothing, title="attnbench", url_path=url_path)], position="hidden")
        st.rerun()


def _nothing() -> None:
    """Stand for a page that is never drawn."""
