"""How much energy does it take, and does it stay as fast once the GPU is hot?"""

import streamlit as st

from pages.ui import sustained
from pages.ui.draw import messages
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.query import sustained as stored

layout.header("sustained")
sustained.energy()
table = sustained.named(ask_slowly(stored.traces))
if table.empty:
    messages.nothing_measured("sustained")
    sustained.run_one()
    st.stop()

st.subheader("A sustained load")
chosen = sustained.choose(table)
sustained.headline(chosen)
sustained.show_curves(chosen)
st.subheader("Every trace")
sustained.numbers_table(table)
sustained.run_one()
messages.download(
    "Download traces", sustained.title(chosen).file_name, lambda: sustained.slices(chosen), "sustained_csv"
)
