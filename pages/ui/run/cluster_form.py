"""The choice of GPUs of a Ray cluster for a sweep, and a table of the cluster."""

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, tables, text
from pages.ui.filters.select import widget
from pages.ui.shell import access
from runner import launch
from runner.launch import ClusterChoice, LaunchError, SweepRequest

DEVICE = "ray"
_MODES = {"spread": "Spread one run over equal GPUs", "each": "The whole sweep on each GPU"}


def chosen() -> tuple[str, ClusterChoice]:
    """Ask for the GPUs and how they share the work; return the kind of device and the choice."""
    left, middle, right = st.columns(3)
    address, gpus = widget("cluster_address", place=left), widget("cluster_gpus", place=middle)
    mode = widget("cluster_mode", list(_MODES), place=right, format_func=_MODES.__getitem__)
    processors, single = widget("cluster_cpu", place=left), widget("cluster_single", place=right)
    choice = ClusterChoice(address.strip(), gpus.strip() or "all", mode, single)
    return "cpu" if processors else "cuda", choice


def show(request: SweepRequest) -> None:
    """Draw the number of cells of the request, and the cluster on demand."""
    sweep = launch.checked(request)
    names = request.implementations or sweep.implementations
    count = len(sweep.cases()) * len(names) * len(sweep.modes)
    messages.say("cluster", combinations=messages.counted(count, "combination"))
    look_at(request.cluster.address)


@st.fragment  # the query takes seconds; the rest of the page remains
def of_run(run: Mapping[str, object]) -> None:
    """Draw the button that shows the cluster of a run that was measured here, on a cluster with an address.

    The address of an upload is its author's, so it is not offered.
    """
    words = launch.words_of(run.get("command")) if run["source"] == "local" else []
    if "--on" in words and "--address" in words[:-1]:
        look_at(words[words.index("--address") + 1])


def look_at(address: str) -> None:
    """Draw the nodes of the cluster on demand, if this session may connect to it."""
    label = f"Look at the cluster {text.plain(address[:80])}" if address else "Look at the cluster"
    allowed = access.here()
    if st.button(label, icon=":material/lan:", key="look_at_cluster", disabled=not allowed):
        _cluster.clear()
        st.session_state["cluster_looked_at"] = address
    if not allowed or st.session_state.get("cluster_looked_at") != address:
        return
    try:
        found = _cluster(address)
    except LaunchError as error:
        st.error(str(error), icon=":material/error:")
        return
    kinds = [node["kind"] or ("not named" if node["gpus"] else "none") for node in found["nodes"]]
    rows = [(n["host"], kind, n["gpus"], n["free"], n["cpus"]) for n, kind in zip(found["nodes"], kinds, strict=True)]
    table = pd.DataFrame(rows, columns=["host", "GPU", "GPUs", "free", "CPUs"])
    tables.grid(table, "Nodes of the cluster and their GPUs")


@st.cache_data(ttl=30, max_entries=4, show_spinner="Asking the cluster")
def _cluster(address: str) -> dict:
    return launch.cluster(address)
