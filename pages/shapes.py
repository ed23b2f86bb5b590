"""Which attention kernel is fastest in the models people use, shape by shape?"""

from __future__ import annotations

import streamlit as st

from pages.ui import shapes
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.query import shapes as query

layout.header(
    "In models", ":material/deployed_code:", "Which kernel is fastest in the shapes of real models?", "shapes"
)
there = ask_slowly(query.there)
if not there:
    shapes.nothing_here()
    st.stop()

gpu, timing = shapes.choose_device(there)
numbers = ask_slowly(query.numbers, gpu, timing)
rows = shapes.choose(query.duels(numbers))
shapes.headline(gpu, rows)
shapes.table(rows)
st.caption(
    f"Each cell is of one run, in which our kernels and another have a time: of such runs one of the code that was "
    f"measured last, with the most implementations. {shapes.runs_in_words(rows)} "
    "Letters: batch, heads, key heads, head_dim, seqlen. What a model adds to its scores is left out of its shape and "
    "said in its name."
)
st.subheader("One shape in detail")
shapes.detail(numbers, rows)
shapes.download(rows)
