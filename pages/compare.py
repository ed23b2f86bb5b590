"""What changed between two runs, implementations or GPUs, and is it more than chance?"""

from __future__ import annotations

import streamlit as st

from pages.ui.compare import beside, choose, gpus, verdicts, versions
from pages.ui.draw import charts, messages
from pages.ui.filters import sidebar
from pages.ui.shell import layout
from results.files.journal import JournalError

RUNS, IMPLEMENTATIONS, VERSIONS = "Two runs", "Two implementations", "Two versions"
GPUS, IMPORTED = "GPUs", "Import beside a run"
SECTIONS = {VERSIONS: versions.section, GPUS: gpus.section, IMPORTED: beside.section}

layout.header("Compare", ":material/compare_arrows:", "What changed, and is it more than chance?")
kind = st.segmented_control(
    "Compare", (RUNS, IMPLEMENTATIONS, *SECTIONS), default=RUNS, required=True, key="of", bind="query-params"
)
if kind in SECTIONS:
    SECTIONS[kind]()
    st.stop()

chosen = choose.two_runs() if kind == RUNS else choose.two_implementations()
if chosen is None:
    st.stop()
sides = chosen if kind == RUNS else (chosen[0], chosen[0], chosen[1:])
if len(set(chosen)) < len(chosen):
    st.info("Both sides are the same. Choose another one.", icon=":material/compare_arrows:")
    st.stop()

try:
    found = choose.judged(*sides)
except JournalError as error:
    st.error(str(error), icon=":material/error:")
    st.stop()
verdicts.headline(found)
st.subheader("What changed around it")
verdicts.what_changed(found)
if found.cells:
    st.subheader("Which cells changed")
    table = verdicts.cells_table(found)
    timings = [timing for timing in sidebar.TIMINGS if timing in set(table["timing"])]
    left, right = st.columns(2)
    with left:
        timing = st.segmented_control("Timing", timings, default=timings[0], required=True, key="of_timing")
    there = [outcome for outcome in verdicts.MEANINGS if outcome in set(table["verdict"])]
    with right:
        wanted = st.pills("Verdict", there, selection_mode="multi", key="verdict", bind="query-params")
    shown = table[table["timing"] == timing]
    if shown["speedup"].notna().any():
        st.plotly_chart(
            verdicts.speedup_chart(shown), config=charts.BARE, alt="Speedup and interval of each cell by latency"
        )
        st.caption(
            "Each mark is a cell: its speedup over its latency before, with the interval whose ends the truth passes "
            "with 5 % each. The grey band is 2 %: inside it nothing changed. Lost and gained numbers have no mark."
        )
    shown = shown[shown["verdict"].isin(wanted)] if wanted else shown
    verdicts.show_cells(shown)
    st.caption(" · ".join(f"{outcome}: {verdicts.MEANINGS[outcome]}" for outcome in there))
    messages.download("Download cells", "comparison", lambda: table, "comparison_csv")
    st.subheader("By how much on average")
    verdicts.means_table(found.means)
    st.caption("Geometric means of the cells with a number on both sides; timings are never mixed.")
st.caption("In a terminal")
st.code(choose.command(*sides), language=None)
