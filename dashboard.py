"""The frame of the app: pages, shared filters, the notice of the store. Served by app.py."""

import streamlit as st

from pages.ui import filters, frame
from pages.ui.data import store

st.set_page_config(page_title="attnbench", page_icon=":material/speed:", layout="wide")

RESULTS = (
    st.Page(
        "pages/overview.py",
        title="Overview",
        icon=":material/leaderboard:",
        default=True,
        help="Which attention is fastest on a GPU, by how much, and whether it fits.",
    ),
    st.Page(
        "pages/speedup.py",
        title="Speedup",
        icon=":material/bolt:",
        help="Speedup over the baseline by seqlen and head_dim, with every failure named.",
    ),
    st.Page(
        "pages/memory.py",
        title="Memory",
        icon=":material/memory:",
        help="Memory by seqlen against the device's capacity and the formula.",
    ),
    st.Page(
        "pages/scaling.py",
        title="Scaling",
        icon=":material/trending_up:",
        help="Time, throughput and memory by seqlen, their share of the device's peak, and the roofline.",
    ),
    st.Page(
        "pages/accuracy.py",
        title="Accuracy",
        icon=":material/target:",
        help="Errors against float64 beside those of a plain implementation, and what speed costs in accuracy.",
    ),
)
EVIDENCE = (
    st.Page(
        "pages/compare.py",
        title="Compare",
        icon=":material/compare_arrows:",
        help="Two runs, implementations or GPUs: what changed, a verdict for each cell, regressions first.",
    ),
    st.Page(
        "pages/sustained.py",
        title="Sustained",
        icon=":material/thermostat:",
        help="Half a minute of back-to-back calls: burst and sustained TFLOP/s, clock, power and temperature.",
    ),
    st.Page(
        "pages/findings.py",
        title="Findings",
        icon=":material/fact_check:",
        help="Numbers that cannot be what they say, published or own, each with its arithmetic.",
    ),
    st.Page(
        "pages/reports.py",
        title="Reports",
        icon=":material/article:",
        help="Published reports beside your own runs, in their own tables, with what arithmetic says against them.",
    ),
)
WORK = (
    st.Page(
        "pages/run_sweep.py",
        title="Run sweep",
        icon=":material/play_circle:",
        help="Plan a sweep on a device of this machine, start it, follow it, cancel it.",
    ),
    st.Page(
        "pages/runs.py",
        title="Runs",
        icon=":material/history:",
        help="Every run and upload: state, environment, log, download.",
    ),
    st.Page(
        "pages/upload.py",
        title="Upload",
        icon=":material/upload:",
        help="Import results from other machines: see what was understood before anything is stored.",
    ),
)

page = st.navigation([*RESULTS, *EVIDENCE, *WORK])
notice = store().notice
if notice:
    st.warning(notice, icon=":material/info:")
with frame.around():
    if page in RESULTS:
        filters.sidebar()
    page.run()
