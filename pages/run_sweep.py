"""Plan a sweep on a device of this machine, start it, follow it live, cancel it."""

from __future__ import annotations

import streamlit as st

from pages.ui import guard, live, messages, planning

messages.header("Run sweep", ":material/play_circle:", "Measure on this machine, one sweep a device at a time.")
allowed = guard.may_run()
live.follow(allowed)

st.subheader("New sweep")
found = planning.what_is_here()
if found is None:
    st.stop()
planning.explain()
request = planning.ask_for(found)
if request is not None:
    planning.plan_and_start(request, found, allowed)

st.subheader("Sweeps on this machine")
live.history(allowed)
planning.link_to_traces()
