"""How fast are prompts over a cache and mixed batches, and what do pages and a single call cost?"""

import streamlit as st

from pages.ui import shapes
from pages.ui.draw import messages, tables, text
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.derive import geometric_mean
from results.query import batches as query

_COLUMNS = tables.declared("batches")
_FACTS = {
    "of_separate": "Time of one call over separate calls",
    "of_contiguous": "Time of pages over a contiguous cache",
}

layout.header("batches")
there = ask_slowly(query.there)
if not there:
    messages.nothing_measured("batches")
    st.stop()

with st.container(horizontal=True):
    gpu, timing = shapes.choose_device(there, "batches")
table = ask_slowly(query.rows, gpu, timing)
facts = []
for column, label in _FACTS.items():
    known = table[table[column].notna() & (table["implementation"] == "triton_varlen")]
    if len(known):
        span = f"{len(known)} batches, {text.span(known[column].min(), known[column].max())}"
        help = "Time of triton_varlen, geometric mean; below 1× is faster."
        facts.append(tables.Fact(label, text.ratio(geometric_mean(known[column])), span, help))
tables.show_facts(facts)
tables.grid(table.dropna(axis="columns", how="all"), "Latency of each batch", _COLUMNS)
messages.say("batches")
messages.download("Download batches", "attnbench-batches", lambda: table, "batches_csv")
