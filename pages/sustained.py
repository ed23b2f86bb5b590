"""Does it stay as fast once the GPU is hot?"""

from __future__ import annotations

import streamlit as st

from pages.ui import sustained as sustaining
from pages.ui.draw import messages
from pages.ui.shell.data import ask_slowly
from results.query import sustained

messages.header("Sustained", ":material/thermostat:", "Does it stay as fast once the GPU is hot?")
table = sustaining.named(ask_slowly(sustained.traces))
if table.empty:
    sustaining.nothing_here()
    st.stop()

chosen = sustaining.choose(table)
sustaining.headline(chosen)
sustaining.trace_charts(chosen)
st.subheader("Every trace")
sustaining.numbers_table(table)
sustaining.run_one()
messages.download("Download traces", "sustained", lambda: sustaining.slices(chosen), "sustained_csv")
