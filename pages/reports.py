"""What did others publish, what does a run of one's own say in the same tables, and can the numbers be right?"""

from __future__ import annotations

import streamlit as st

from pages.ui.reports import choose, download, tables
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly

QUESTION = "What did others publish, what do we get in the same tables, and can the numbers be right?"
VIEWS = ("Tables", "Numbers", "Chart", "Findings", "In words")

layout.header("Reports", ":material/article:", QUESTION)
choice = choose.choose()
choose.facts(choice)
found = ask_slowly(tables.sections, choice)
problems = ask_slowly(tables.findings, choice.report)
tables.coverage(found, problems, choice)

view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="report_view", bind="query-params")
table = tables.numbers(found)
if view == "Tables":
    tables.tables(found, choice)
elif view == "Numbers":
    tables.numbers_table(table)
elif view == "Chart":
    tables.chart(table, choice)
elif view == "Findings":
    tables.findings_table(problems)
else:
    tables.in_words(choice.report)
st.subheader("Download")
download.downloads(choice)
