"""Which numbers are implausible, and why?"""

from __future__ import annotations

import streamlit as st

from pages.ui import findings
from pages.ui.draw import messages
from pages.ui.shell import layout

layout.header("Findings", ":material/fact_check:", "Which numbers are implausible, and why?")
table = findings.everything()
if table.empty:
    st.info(
        "No finding: no number here contradicts arithmetic, its device or the other numbers. Run a sweep, or upload "
        "results, to have them checked.",
        icon=":material/check_circle:",
    )
    with st.expander("What is looked for", icon=":material/rule:"):
        findings.rules_table()
    st.stop()

weights = [weight for weight in findings.WEIGHTS if weight in set(table["weight"])]
left, middle, right = st.columns([1, 2, 2])
with left:
    wanted = st.pills("Severity", weights, selection_mode="multi", key="weight", bind="query-params", wrap=True)
with middle:
    places = st.multiselect(
        "Run or report", sorted(table["place"].unique()), key="place", bind="query-params", placeholder="All"
    )
with right:
    titles = sorted(table["title"].unique())
    rules = st.multiselect("Rule", titles, key="rule", bind="query-params", placeholder="All")
for column, chosen in (("weight", wanted), ("place", places), ("title", rules)):
    table = table[table[column].isin(chosen)] if chosen else table
if table.empty:
    st.info("No finding matches all of these filters. Clear one of them.", icon=":material/filter_alt_off:")
    st.stop()

counts = {weight: int((table["weight"] == weight).sum()) for weight in findings.WEIGHTS}
reach = table["place"].nunique()
where = "one run or report" if reach == 1 else f"{reach} runs and reports"
st.markdown(
    f"#### {messages.counted(len(table), 'finding')} in {where}",
    help=" · ".join(f"{weight}: {meaning}" for weight, meaning in findings.WEIGHTS.items())
    + ". A finding never hides or changes a number.",
)
st.markdown(findings.badges(counts))
findings.by_rule(table, key="findings")
st.caption("One line per rule and run. Select a line to list its findings, and a finding to see its numbers.")
messages.download("Download findings", "findings", lambda: findings.as_file(table), "findings_csv")
with st.expander("What is looked for", icon=":material/rule:"):
    findings.rules_table()
st.caption("In a terminal, with every sentence")
st.code("python -m results check --all", language=None)
