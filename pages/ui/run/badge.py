"""The badge of a running sweep in the sidebar of every page: how far it is, the way to it, a button that cancels it."""

from __future__ import annotations

import streamlit as st

from pages.ui.draw import text
from pages.ui.run import under_way
from runner import launch
from runner.launch import RunStatus


def draw() -> None:
    """Draw the badge, again every few seconds without the page, while a sweep runs; nothing, and no timer, if none."""
    found = launch.running()
    if not found:
        return
    with st.sidebar:
        st.fragment(_draw, run_every=under_way.pace(True), key="badge")(tuple(status.run_id for status in found))


def _draw(before: tuple[str, ...]) -> None:
    found = launch.running()
    if tuple(status.run_id for status in found) != before:
        st.rerun()  # one has ended, and what it measured belongs on the page
    with st.container(border=True, key="running_badge"):
        for status in found:
            _one(status)


def _one(status: RunStatus) -> None:
    share = status.done / status.total if status.total else 0.0
    st.progress(min(1.0, share), text=f"{text.plain(status.sweep or 'Sweep')}: {share:.0%}, {under_way.left(status)}")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.page_link("pages/run_sweep.py", label="Follow", icon=":material/play_circle:")
        under_way.cancel_button(status.run_id, f"badge_cancel_{status.run_id}")
