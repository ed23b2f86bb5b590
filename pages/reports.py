"""What did others publish, what do we measure in the same tables, and are the numbers plausible?"""

from __future__ import annotations

import streamlit as st

from pages.ui.reports import chart, choose, download, tables
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly

QUESTION = "What did others publish, what do we measure in the same tables, and are the numbers plausible?"
VIEWS = ("Tables", "Numbers", "Chart", "Findings", "In words")

layout.header("Reports", ":material/article:", QUESTION)
choice = choose.choose()
choose.facts(choice)
found = ask_slowly(tables.sections, choice)
problems = ask_slowly(tables.findings, choice.report)
tables.coverage(found, problems, choice)

view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="report_view", bind="query-params")
if view == "Tables":
    tables.tables(found, choice)
elif view == "Numbers":
    tables.numbers_table(tables.numbers(found))
elif view == "Chart":
    chart.draw(choice)
elif view == "Findings":
    tables.findings_of(choice)
else:
    tables.in_words(choice.report)
st.subheader("Download")
download.downloads(choice)
