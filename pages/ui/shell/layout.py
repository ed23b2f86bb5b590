"""The frame of every page: its header, and the navigation and filters of dashboard.py."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st

from pages.ui.shell import address
from pages.ui.shell.sections import entry_of

_FRAMED = "framed"


@contextmanager
def around(controls: Callable[[], None]) -> Iterator[None]:
    """Draw a page inside dashboard.py; `controls` draws the part below the header."""
    st.session_state[_FRAMED] = controls
    try:
        yield
    finally:
        st.session_state[_FRAMED] = None
        address.write()


def header(file: str) -> None:
    """Draw the name of a page, its question and its controls."""
    entry = entry_of(file)
    _require(file)
    name = f'<h1><span aria-hidden="true">{entry.icon}</span>{entry.title}</h1><p>{entry.question}</p>'
    st.html(f'<div class="page-name">{name}</div>')  # one element, because each costs the browser milliseconds
    st.set_page_config(page_title=f"{entry.title} · attnbench")
    address.place_of_notes(file)
    st.session_state[_FRAMED]()


def _require(url_path: str) -> None:
    """Run app.py around this page if it runs alone.

    Until the first st.navigation of a server, Streamlit treats a folder named `pages` as a list of pages, and runs a
    linked page without app.py (1.67: PagesManager.uses_pages_directory). A st.navigation with this address ends that,
    and the rerun comes back here through app.py.
    """
    if not st.session_state.get(_FRAMED):
        pages = [st.Page(lambda: None, title="attnbench", default=True, url_path="start")]  # it is never drawn
        st.navigation([*pages, st.Page(lambda: None, title="attnbench", url_path=url_path)], position="hidden")
        st.rerun()
