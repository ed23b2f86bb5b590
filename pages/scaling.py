"""How do time, throughput and memory grow with seqlen, and how near do they come to what the device can do?"""

from __future__ import annotations

import streamlit as st

from pages.ui import scaling
from pages.ui.draw import messages
from pages.ui.filters import sidebar
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.query import scaling as growing

layout.header(
    "Scaling", ":material/trending_up:", "How does it grow with seqlen, and how near is it to what the device can do?"
)
chosen = sidebar.current()
table = ask_slowly(growing.rows, chosen)
if not table["latency_ms"].notna().any():
    messages.nothing_here(chosen)
    st.stop()

quantity = scaling.choose_quantity(table)
if quantity == scaling.ROOFLINE:
    kept = "all shapes of the slice"
else:
    table, kept = scaling.one_shape(table, chosen)
scaling.headline(table)
scaling.show_charts(table, quantity, chosen)
scaling.caption(chosen, quantity, kept, table)
st.subheader("Every number")
numbers = scaling.numbers(table)
scaling.numbers_table(numbers)
messages.download("Download numbers", f"scaling_{quantity}", lambda: numbers, "scaling_csv")
messages.provenance(chosen)
