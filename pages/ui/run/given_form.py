"""Measuring the cases of a run that came from elsewhere: the form of Run sweep with ?cases_of=RUN in the address."""

from __future__ import annotations

import streamlit as st

from pages.ui.draw import text
from pages.ui.run import plan_form
from results.files import journal
from runner import launch
from runner.launch import SweepRequest
from runner.sweeps import SweepError


def asked() -> str | None:
    """Return the run whose cases the address asks for."""
    return st.query_params.get("cases_of") or None


def ask_for(found: dict | None, run_id: str) -> SweepRequest | None:
    """Return the request as it stands in the form; None, and the reason on the page, if it makes no sweep."""
    if found is None:
        st.caption("Looking for devices and implementations.")
        return None
    try:
        sweep, left = launch.cases_of(run_id, journal.home())
    except SweepError as error:
        st.error(text.plain(str(error)), icon=":material/error:")
        return None
    devices = {device["id"]: device["name"] for device in found["devices"]}
    with st.container(border=True):
        st.markdown(f"{len(sweep.given):,} shapes of **{text.plain(run_id)}**, modes {', '.join(sweep.modes)}")
        for sentence in left:
            st.caption(f":material/do_not_disturb_on: Left out: {text.plain(sentence)}")
        chosen, right = st.columns(2)
        device = chosen.selectbox("Device", list(devices), key="given_device")
        chosen.caption(text.plain(devices[device]))
        presets = [name for name in launch.PROTOCOLS if name != "sustained"]
        protocol = right.segmented_control("Protocol", presets, default="quick", required=True, key="given_protocol")
        known = [i["name"] for i in found["implementations"] if i.get("level", "op") == sweep.level]
        usual = [name for name in sweep.implementations if name in known]
        names = st.multiselect("Implementations", known, default=usual, key="given_implementations", select_all=False)
        st.button("Choose another sweep", icon=":material/close:", key="leave_given", on_click=_leave)
    request = SweepRequest(
        sweep=sweep.name, device=device, implementations=tuple(names), protocol=protocol, cases_of=run_id
    )
    problems = plan_form.problems_of(request, found)
    for problem in problems:
        st.error(text.plain(problem), icon=":material/error:")
    return None if problems else request


def _leave() -> None:
    st.query_params.pop("cases_of", None)
