"""What did others publish, what do we measure in the same tables, and are the numbers plausible?"""

import streamlit as st

from pages.ui.filters import select
from pages.ui.reports import chart, choose, sections
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly

VIEWS = ("Tables", "Numbers", "Chart", "Findings", "In words")

layout.header("reports")
choice = choose.choose()
choose.facts(choice)
found = ask_slowly(sections.sections, choice)
problems = ask_slowly(sections.findings, choice.report)
sections.coverage(found, problems, choice)

view = select.segments("View", "report_view", VIEWS)
if view == "Tables":
    sections.tables(found, choice)
elif view == "Numbers":
    sections.numbers_table(sections.numbers(found))
elif view == "Chart":
    chart.draw(choice)
elif view == "Findings":
    sections.findings_of(choice)
else:
    sections.in_words(choice.report, found)
st.subheader("Download")
sections.downloads(choice)
