"""Plan a sweep on a device of this machine, start it, follow it live, cancel it."""

from __future__ import annotations

import streamlit as st

from pages.ui.run import given_form, plan_form, progress
from pages.ui.shell import access, layout

layout.header("Run sweep", ":material/play_circle:", "Measure on this machine, one sweep a device at a time.")
allowed = access.may_run()
progress.follow(allowed)

st.subheader("New sweep")
found = plan_form.what_is_here()
if found is None:
    st.stop()
plan_form.explain()
given = given_form.asked()
request = given_form.ask_for(found, given) if given else plan_form.ask_for(found)
if request is not None:
    plan_form.plan_and_start(request, found, allowed)

st.subheader("Sweeps on this machine")
progress.history(allowed)
plan_form.link_to_traces()
