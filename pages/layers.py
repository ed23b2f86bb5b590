"""How fast is a whole attention layer by the attention inside, and how much of its time is attention?"""

import streamlit as st

from pages.ui import layers
from pages.ui.draw import cells, colours, detail, maps, messages, text
from pages.ui.filters import chips
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask, ask_slowly
from results.query import layers as query
from results.query import speedups


def show() -> None:
    """Draw our best against PyTorch's, ranges of speedup, every layer and mode, and the share of attention."""
    chosen = chips.current()
    if chosen.gpu is None:
        messages.nothing_measured("layers")
        return
    table = ask_slowly(query.rows, chosen)
    if table.empty:
        messages.nothing_here(chosen, "layer latencies")
        return
    ranges, duels = query.ranges(table, chosen.baseline), ask_slowly(query.duels, chosen)
    layers.headline(duels, ranges, chosen)
    if len(duels):
        st.subheader("Ours and PyTorch's best")
        layers.duel_table(duels)
    st.subheader("Ranges of speedup")
    layers.range_table(ranges, chosen.baseline)
    st.subheader("Every layer")
    for dtype in sorted(table["dtype"].map(cells.dtype_name).unique()):
        st.markdown(f"**{text.plain(dtype)}**")
        layers.layer_table(table, dtype)
    messages.say("every_layer")
    st.subheader("Share of attention")
    layers.shares(table, colours.palette(sorted(table["implementation"].unique())), chosen)
    st.subheader("One layer in detail")
    one = layers.one_kind(table, chosen)
    if place := maps.pick(layers.LEVEL, ask(speedups.cells, one)):
        detail.cell_detail(one, place)
    messages.folded("Every number", "every_number", lambda: layers.numbers_table(table, chosen))
    messages.provenance(chosen, newer=True)


layout.header("layers")
page_body.show(show)
