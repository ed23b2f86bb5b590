"""The finder: what computes the features that a reader needs, what is fastest on each GPU, and how to measure it."""

import streamlit as st

from pages.ui.draw import tables, text
from pages.ui.shell.data import ask, ask_slowly
from results.recommend import finder


def show() -> None:
    """Ask for features; draw a row a GPU, who declares them, and the command where nobody measured them."""
    wants = list(finder.WANTS.values())
    words = st.pills("I need", wants, selection_mode="multi", key="finder_needs", bind="query-params")
    wanted = tuple(name for name, said in finder.WANTS.items() if said in (words or ()))
    if not wanted:
        st.info("Choose what your program needs, such as a sliding window and softcap.", icon=":material/tune:")
        return
    able = ask(finder.able, wanted)
    names = ", ".join(map(text.plain, able)) or "none in a run here"
    st.markdown(f"Implementations that declare all of it: {names}.")
    table = ask_slowly(finder.found, wanted)
    missing = table[table["winner"].isna()]["gpu"].tolist()
    if missing or table.empty:
        st.markdown(f"Nobody has measured it on {', '.join(map(text.plain, missing)) or 'any GPU'}. Measure it there:")
        st.code(finder.command(wanted), language="bash", wrap_lines=True)
    config = tables.declared("finder")
    tables.grid(table, "The fastest implementation with these features on each GPU", config)
