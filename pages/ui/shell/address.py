"""The address of a view, with one entry of the browser's history for each view.

Streamlit writes each parameter of a bound widget into the history separately, so that leaving a page with six filters
would take six clicks. `note` collects the parameters and `write` sends them together.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.ui.draw.text import plain

_NOTED = "address_noted"
_STALE = "address_stale"  # the place below the header


def came_back() -> bool:
    """Return whether this run draws an address that the browser's Back or Forward button brought."""
    context = get_script_run_ctx(suppress_warning=True)
    return bool(getattr(context, "is_history_navigation", False))


def named(key: str) -> str | None:
    """Return the value of a widget in the address, if it applies: in the first run, and after Back or Forward."""
    return st.query_params.get(key) if came_back() or key not in st.session_state else None


def stale(label: str, values: Sequence[str]) -> None:
    """Say below the header that the link names what is not here; the page shows something else."""
    said = ", ".join(plain(value[:60]) for value in values)
    notes = st.session_state.get(_STALE)
    if notes is not None and (note := f"{label} {said}") not in notes.said:
        notes.said.append(note)
        notes.draw()


@dataclass
class _Notes:
    """What the link to a page names that is not here, and the place below the header that says so."""

    page: str
    place: Any
    said: list[str]

    def draw(self) -> None:
        if self.said:
            self.place.caption(f":material/link_off: The link names what is not here: {'; '.join(self.said)}.")


def place_of_notes(page: str) -> None:
    """Keep the place below the header for the notes of `stale`; they stay until another page is opened."""
    before = st.session_state.get(_STALE)
    said = before.said if before is not None and before.page == page else []
    st.session_state[_STALE] = _Notes(page, st.empty(), said)
    st.session_state[_STALE].draw()


def check(label: str, key: str, choices: Sequence[Any]) -> None:
    """Name the values of a widget's parameter that are none of its choices, in the first run of a link."""
    if named(key) is not None:
        there = {str(choice) for choice in choices}
        if missing := [value for value in st.query_params.get_all(key) if value not in there]:
            stale(label, missing)


def takes_default(key: str) -> bool:
    """Return whether Streamlit will set a widget to its default: after Back or Forward to an address without it.

    Otherwise the default must not be the value of the widget, because the address leaves out defaults.
    """
    return came_back() and key not in st.query_params


def note(key: str, value: str | Sequence[str]) -> None:
    """Remember the value of a widget for the address before the widget is drawn, except after Back or Forward."""
    wanted = [value] if isinstance(value, str) else list(value)
    if came_back() or st.query_params.get_all(key) == wanted:
        return
    given = value if isinstance(value, str) else wanted
    try:
        from streamlit.runtime.state.session_state_proxy import get_session_state

        with get_session_state().query_params() as params:
            params.set_with_no_forward_msg(key, given)
        st.session_state[_NOTED] = True
    except (ImportError, AttributeError):  # another version of Streamlit, which refuses it once the widget is drawn
        with suppress(StreamlitAPIException):
            st.query_params[key] = given


def write() -> None:
    """Write all noted values into the browser's address as one entry of its history."""
    if st.session_state.pop(_NOTED, False):
        st.query_params.update({})
