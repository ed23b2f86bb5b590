"""Which attention kernel is fastest in the models people use, shape by shape?"""

import streamlit as st

from pages.ui import shapes
from pages.ui.draw import messages
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.levels.real_shapes import SHAPES
from results.query import shapes as query

layout.header("shapes")
there = ask_slowly(query.there)
if not there:
    messages.nothing_measured("shapes", count=len(SHAPES))
    st.stop()

with st.container(horizontal=True):
    gpu, timing = shapes.choose_device(there)
    numbers, duels = ask_slowly(shapes.measured, gpu, timing)
    rows = shapes.choose(duels)
shapes.headline(gpu, rows)
shapes.table(rows)
messages.say("shapes", runs=shapes.runs_in_words(rows))
st.subheader("One shape in detail")
shapes.detail(numbers, rows)
shapes.download(rows)
