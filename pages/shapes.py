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
    messages.nothing_measured(
        f"No shape of a model was measured yet. A sweep has {len(SHAPES)} of them: language, vision, image, video, "
        "speech and protein models.",
        ":material/deployed_code:",
        "real_models",
    )
    st.stop()

with st.container(horizontal=True):
    gpu, timing = shapes.choose_device(there)
    numbers, duels = ask_slowly(shapes.measured, gpu, timing)
    rows = shapes.choose(duels)
shapes.headline(gpu, rows)
shapes.table(rows)
st.caption(
    "Both times of a row come from one run. Where several runs have the shape, the one of the newest kernels with the "
    f"most implementations counts. {shapes.runs_in_words(rows)} Letters: batch, heads, key heads, head_dim, seqlen. A "
    "name says what the model adds to its scores; it is not computed here."
)
st.subheader("One shape in detail")
shapes.detail(numbers, rows)
shapes.download(rows)
