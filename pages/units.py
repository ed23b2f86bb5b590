"""What do the units, timings, verdicts and shapes mean?"""

import streamlit as st

from pages.ui.shell import layout, terms

layout.header("units")
for anchor, term in terms.TERMS.items():
    st.header(term["title"], anchor=anchor)
    st.markdown(term["text"])
