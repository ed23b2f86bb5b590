"""Sweeps under way, as every page may ask: how often a tab looks, what is left; cancelling and resuming."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import streamlit as st

from pages.ui.draw import text
from pages.ui.run import background
from pages.ui.shell import access
from results.files.journal import JournalError
from results.render.text import time_left
from runner import launch
from runner.launch import LaunchError, RunStatus

IDLE_S = 15  # an idle tab still looks, or it would never learn of a sweep started elsewhere
PROBLEM = "start_problem"  # what went wrong at the last click, for the next drawing
_STARTING = "starting"  # what this session has begun
_PACES_S = (2, 5, 10, 20, 60)  # all tabs together look about every other second, however many there are
_SEEN_S = 90  # a tab that has not looked for so long is closed


def pace(any_running: bool) -> int:
    """Return the seconds between two looks of this tab: more where more tabs look, to spare a sweep's host."""
    now, tabs = time.monotonic(), _tabs()
    tabs[st.session_state.setdefault("tab", uuid.uuid4().hex)] = now
    count = sum(now - seen < _SEEN_S for seen in list(tabs.values()))
    found = next((pace for pace in _PACES_S if pace >= 2 * count), _PACES_S[-1])
    return found if any_running else max(IDLE_S, found)


def left(status: RunStatus) -> str:
    """Say how long a run may still take."""
    return time_left(status.eta_s, bound=status.eta_bound)


def cancel_button(run_id: str, key: str) -> None:
    """Draw the button that cancels a run once it is confirmed; nothing where sweeps may not be run."""
    with st.popover("Cancel", icon=":material/stop_circle:", disabled=not _allowed()):
        st.markdown("Stop now? What was measured is kept, and the sweep can be resumed.")
        st.button("Yes, cancel it", key=key, type="primary", on_click=_cancel, args=(run_id,))


def resume_button(run_id: str, *, disabled: bool) -> None:
    """Draw the button that goes on with a run that was cut off."""
    icon, key = ":material/resume:", f"resume_{run_id}"
    st.button("Resume", icon=icon, key=key, on_click=_resume, args=(run_id,), disabled=disabled)


def act(what: str, work: Callable[[], object]) -> None:
    """Begin what takes seconds, such as starting a sweep, if this session may; `starting` says how it goes."""
    if not _allowed():
        st.session_state[PROBLEM] = "Running sweeps is off on this server."
    else:
        st.session_state[_STARTING] = what, background.begin(work)


def starting() -> str | None:
    """Return what this session has begun and is not under way yet; what went wrong is kept for the next drawing."""
    what, begun = st.session_state.get(_STARTING, (None, None))
    if begun is None:
        return None
    if not background.is_done(begun):
        return what
    del st.session_state[_STARTING]
    if error := begun.exception():
        if not isinstance(error, LaunchError | JournalError):
            raise error
        st.session_state[PROBLEM] = str(error)
    return None


def draw_starting() -> None:
    """Say that a sweep is starting, and draw the page again when it is under way."""
    if what := starting():
        with st.container(border=True):
            st.markdown(f":blue-badge[:material/hourglass_top: starting] **{text.plain(what)}**")
            st.caption("A process of its own imports PyTorch and looks at the device. That takes some seconds.")
        background.draw_again_once(st.session_state[_STARTING][1])


def _resume(run_id: str) -> None:
    act(run_id, lambda: launch.resume(run_id))


def _cancel(run_id: str) -> None:
    """Ask a run to stop if this session may; what goes wrong is said at the next drawing."""
    if not _allowed():
        st.session_state[PROBLEM] = "Running sweeps is off on this server."
        return
    try:
        launch.cancel(run_id)
    except LaunchError as error:
        st.session_state[PROBLEM] = str(error)


def _allowed() -> bool:
    return access.allowed(st.session_state.get("run_token"))


@st.cache_resource(show_spinner=False)
def _tabs() -> dict[str, float]:
    """Return when each tab of this process last looked."""
    return {}
