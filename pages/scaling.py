"""How fast is each implementation as sequences grow, and how near to the peak of the device?"""

import streamlit as st

from pages.ui import scaling
from pages.ui.draw import messages
from pages.ui.filters import chips
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.query import scaling as growing

layout.header("scaling")
chosen = chips.current()
table = ask_slowly(growing.rows, chosen)
if not table["latency_ms"].notna().any():
    messages.nothing_here(chosen)
    st.stop()

energy = ask_slowly(growing.rows_of_energy, chosen)
with st.container(horizontal=True, gap="medium"):
    quantity = scaling.choose_quantity(table, energy)
    table, view = scaling.choose(energy if quantity in growing.ENERGIES else table, quantity, chosen)
if quantity not in growing.ENERGIES:
    scaling.headline(table)
scaling.show_charts(table, view)
scaling.caption(view, table)
st.subheader("Every number")
numbers = scaling.numbers(table)
scaling.numbers_table(numbers, view.quantity)
messages.download_slice("Download numbers", view.title(table), chosen, lambda: numbers, "scaling_csv")
messages.provenance(chosen, newer=True)
