"""Running sweeps: the polling interval of a tab, the remaining time, cancelling and resuming, and the sidebar badge."""

import time
import uuid
from collections.abc import Callable

import streamlit as st

from pages.ui.draw import text
from pages.ui.run import background
from pages.ui.shell import access
from results.files import journal
from results.files.journal import JournalError, RunFolder
from results.render.text import time_left
from runner import launch
from runner.launch import LaunchError, RunStatus

IDLE_S = 15  # an idle tab polls too, to notice a sweep that was started elsewhere
RESUMABLE = ("cancelled", "crashed", "failed")
PROBLEM = "start_problem"  # the error of the last click, for the next drawing
_STARTING = "starting"  # the sweep that this session is starting
_PACES_S = (2, 5, 10, 20, 60)  # all tabs together poll about every other second
_SEEN_S = 90  # a tab that has not polled for this long is closed


def pace(any_running: bool) -> int:
    """Return the polling interval of this tab in seconds: longer if there are more tabs, to spare the host."""
    now, tabs = time.monotonic(), _tabs()
    tabs[st.session_state.setdefault("tab", uuid.uuid4().hex)] = now
    count = sum(now - seen < _SEEN_S for seen in list(tabs.values()))
    found = next((pace for pace in _PACES_S if pace >= 2 * count), _PACES_S[-1])
    return found if any_running else max(IDLE_S, found)


def left(status: RunStatus) -> str:
    """Write the remaining time of a run."""
    return time_left(status.eta_s, bound=status.eta_bound)


def cancel_button(run_id: str, key: str) -> None:
    """Draw the button that cancels a run after confirmation; it is disabled if sweeps are off, or once pressed."""
    if RunFolder(journal.home() / "runs" / run_id).cancel_requested():
        st.button("Cancelling", icon=":material/hourglass_top:", key=key, disabled=True)
        return
    with st.popover("Cancel", icon=":material/stop_circle:", disabled=not access.here()):
        st.markdown("Stop now? What was measured is kept, and the sweep can be resumed.")
        st.button("Yes, cancel it", key=key, type="primary", on_click=_cancel, args=(run_id,))


def resume_button(run_id: str, *, disabled: bool, key: str = "resume") -> None:
    """Draw the button that resumes an interrupted run; it asks if the run names a program or an address."""
    icon, key, label = ":material/resume:", f"{key}_{run_id}", "Resume"
    named = launch.named_by_the_run(run_id)
    if not named:
        st.button(label, icon=icon, key=key, on_click=_resume, args=(run_id, named), disabled=disabled)
        return
    with st.popover(label, icon=icon, disabled=disabled):
        st.markdown(f"The record of this run asks for {text.plain(' '.join(named))}. Resume only if you know it.")
        st.button("Yes, resume it with that", key=key, type="primary", on_click=_resume, args=(run_id, named))


def act(what: str, work: Callable[[], object]) -> None:
    """Run `work` in the background, such as starting a sweep, if this session may; `starting` follows it."""
    if not access.here():
        st.session_state[PROBLEM] = access.OFF
    else:
        st.session_state[_STARTING] = what, background.begin(work)


def starting() -> str | None:
    """Return the name of a sweep that is still starting; keep its error for the next drawing."""
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
    """Draw that a sweep is starting, and redraw the page when it runs."""
    if what := starting():
        with st.container(border=True):
            st.markdown(f":blue-badge[:material/hourglass_top: starting] **{text.plain(what)}**")
            st.caption("A new process imports PyTorch and checks the device, which takes some seconds.")
        background.draw_again_once(st.session_state[_STARTING][1])


def draw_badge() -> None:
    """Draw the running sweeps in the sidebar of every page, redrawn every few seconds; draw nothing without a sweep."""
    found = launch.running()
    if not found:
        return
    with st.sidebar:
        st.fragment(_badge, run_every=pace(True), key="badge")(tuple(status.run_id for status in found))


def _badge(before: tuple[str, ...]) -> None:
    found = launch.running()
    if tuple(status.run_id for status in found) != before:
        st.rerun()  # a sweep has ended, and the page shows its numbers
    with st.container(border=True, key="running_badge"):
        for status in found:
            share = status.done / status.total if status.total else 0.0
            st.progress(min(1.0, share), text=f"{text.plain(status.sweep or 'Sweep')}: {share:.0%}, {left(status)}")
            with st.container(horizontal=True, vertical_alignment="center"):
                st.page_link("pages/run_sweep.py", label="Follow", icon=":material/play_circle:")
                cancel_button(status.run_id, f"badge_cancel_{status.run_id}")


def _resume(run_id: str, confirmed: tuple[str, ...]) -> None:
    act(run_id, lambda: launch.resume(run_id, confirmed=confirmed))


def _cancel(run_id: str) -> None:
    """Ask a run to stop if this session may; keep an error for the next drawing."""
    kind, said = access.attempt(lambda: launch.cancel(run_id), LaunchError)
    if kind != "success":
        st.session_state[PROBLEM] = said


@st.cache_resource(show_spinner=False)
def _tabs() -> dict[str, float]:
    """Return the time of the last poll of each tab."""
    return {}
