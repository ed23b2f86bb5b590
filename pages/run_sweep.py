"""Run a sweep on a device of this machine: its plan, its progress, and its result."""

from functools import partial

import streamlit as st

from pages.ui.run import plan_form, progress
from pages.ui.shell import access, layout

layout.header("run_sweep")
allowed = access.may_run()
progress.follow()

st.header("New sweep")
given = st.query_params.get("cases_of")
plan_form.new_sweep(allowed, partial(plan_form.ask_for_given, run_id=given) if given else plan_form.ask_for)
plan_form.explain()

st.header("Sweeps on this machine")
progress.history(allowed)
plan_form.link_to_traces()
