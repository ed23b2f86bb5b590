"""Which numbers cannot be what they say, and why?"""

from __future__ import annotations

import streamlit as st

from pages.ui import findings
from pages.ui.draw import messages
from pages.ui.shell import layout

layout.header("Findings", ":material/fact_check:", "Which numbers cannot be what they say, and why?")
table = findings.everything()
if table.empty:
    st.info(
        "No finding: no number here contradicts arithmetic, its device or the other rows. Run a sweep, or upload "
        "results, to have them checked.",
        icon=":material/check_circle:",
    )
    with st.expander("What is looked for", icon=":material/rule:"):
        findings.rules_table()
    st.stop()

weights = [weight for weight in findings.WEIGHTS if weight in set(table["weight"])]
left, middle, right = st.columns([1, 2, 2])
with left:
    wanted = st.pills("Weight", weights, selection_mode="multi", key="weight", bind="query-params", wrap=True)
with middle:
    places = st.multiselect(
        "Report or run", sorted(table["place"].unique()), key="place", bind="query-params", placeholder="All"
    )
with right:
    titles = sorted(table["title"].unique())
    rules = st.multiselect("Rule", titles, key="rule", bind="query-params", placeholder="All")
for column, chosen in (("weight", wanted), ("place", places), ("title", rules)):
    table = table[table[column].isin(chosen)] if chosen else table
if table.empty:
    st.info("No finding is of all of these at once. Clear one of them.", icon=":material/filter_alt_off:")
    st.stop()

counts = {weight: int((table["weight"] == weight).sum()) for weight in findings.WEIGHTS}
reach = table["place"].nunique()
where = "one report or run" if reach == 1 else f"{reach} reports and runs"
st.markdown(f"#### {messages.counted(len(table), 'finding')} in {where}")
st.markdown(findings.badges(counts))
st.caption(
    " · ".join(f"{weight}: {meaning}" for weight, meaning in findings.WEIGHTS.items() if counts[weight])
    + ". A finding never hides or changes a number. Select one to see the rows that it is about."
)
picked = findings.show(table, key="findings")
if picked:
    st.subheader("The rows of that finding")
    st.dataframe(findings.rows_of(picked), hide_index=True, alt="The rows of the selected finding, its subject first")
messages.download("Download findings", "findings", lambda: table.drop(columns="measurement_ids"), "findings_csv")
st.subheader("How many of which rule")
st.dataframe(findings.counts(table), hide_index=True, alt="Findings by rule and by report or run")
with st.expander("What is looked for", icon=":material/rule:"):
    findings.rules_table()
st.caption("In a terminal, with every sentence")
st.code("python -m results check --all", language=None)
