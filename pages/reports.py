"""What did others publish, what does a run of one's own say in the same tables, and can the numbers be right?"""

from __future__ import annotations

import streamlit as st

from pages.ui import messages, reporting, reporting_choice, reporting_downloads
from pages.ui.data import ask_slowly

QUESTION = "What did others publish, what do we get in the same tables, and can the numbers be right?"
VIEWS = ("Tables", "Numbers", "Chart", "Findings", "In words")

messages.header("Reports", ":material/article:", QUESTION)
choice = reporting_choice.choose()
reporting_choice.facts(choice)
found = ask_slowly(reporting.sections, choice)
problems = ask_slowly(reporting.findings, choice.report)
reporting.coverage(found, problems, choice)

view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="report_view", bind="query-params")
table = reporting.numbers(found)
if view == "Tables":
    reporting.tables(found, choice)
elif view == "Numbers":
    reporting.numbers_table(table)
elif view == "Chart":
    reporting.chart(table, choice)
elif view == "Findings":
    reporting.findings_table(problems)
else:
    reporting.in_words(choice.report)
st.subheader("Download")
reporting_downloads.downloads(choice)
