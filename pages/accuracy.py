"""How far from float64 is an implementation, and what does its speed cost in accuracy?"""

import streamlit as st

from pages.ui import accuracy
from pages.ui.draw import colours, messages
from pages.ui.filters import chips
from pages.ui.shell import layout
from results.query.accuracy import NORMAL

layout.header("accuracy")
chosen = chips.current()
tensor, measure = accuracy.choose()
everything = accuracy.errors(chosen, tensor, measure)
if everything.empty:
    accuracy.nothing(chosen)
    st.stop()

view = accuracy.ErrorView(chosen, tensor, measure)
palette = colours.palette(everything["implementation"].unique().tolist())
table = everything[everything["inputs"] == NORMAL]
if len(table):
    accuracy.headline(table, chosen)
    st.subheader("Accuracy against speed")
    if table["speedup"].notna().any():
        accuracy.frontier(table, palette, view)
        accuracy.caption(view, table)
    else:
        st.caption("No times for these errors with this timing and baseline. Choose others in the filters.")
    with st.expander("Error and speedup in numbers", icon=":material/table_rows:"):
        accuracy.summaries(table)
    st.subheader("Does the error grow with the sequence?")
    accuracy.by_seqlen(table, palette, view)
st.subheader("Other inputs than unit normal")
varied, where = accuracy.beyond(chosen, everything, tensor, measure)
accuracy.beyond_normal(varied, where, palette, view)
with st.expander("Every shape", icon=":material/table_rows:"):
    accuracy.every_case(everything)
with st.expander("Certificates: leaks, batches, padding, repeats, NaN", icon=":material/verified_user:"):
    accuracy.certificates()
messages.download_slice("Download errors", view.title(everything), chosen, lambda: everything, "errors_csv")
messages.provenance(chosen)
