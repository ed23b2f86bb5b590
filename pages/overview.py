"""Which implementation is fastest for my GPU and shapes, by how much, and does it fit?"""

import streamlit as st

from pages.ui.draw import messages, titles
from pages.ui.filters import chips, select
from pages.ui.overview import my_card, my_shape, views
from pages.ui.overview import ranking as ranked
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.query import pages, pairing, speedups
from results.slice import Filters, level_in

VIEWS = ("This GPU", "Every GPU", "My shape", "My features", "What to use when")


def show() -> None:
    """Draw the chosen view of the slice."""
    chosen = chips.current()
    ranking = ask(speedups.ranked, chosen)
    if not ranking:
        messages.nothing_here(chosen)
        return
    with st.container(horizontal=True, vertical_alignment="center", key="views"):
        view = select.segments("View", "overview_view", VIEWS, label_visibility="collapsed")
        my_card.choose(chosen)
    my_card.show()
    if view == "Every GPU":
        st.header("Fastest implementation on every GPU")
        views.every_gpu(chosen)
    elif view == "My shape":
        st.header("Best choice for a shape")
        my_shape.show(chosen)
    elif view == "My features":
        st.header("Implementations with the features of a program")
        views.finder_of_features()
        views.block_masks()
    elif view == "What to use when":
        views.what_to_use(chosen)
    else:
        this_gpu(chosen, ranking)


def this_gpu(chosen: Filters, ranking: list[dict]) -> None:
    """Draw the answer, the winner of each shape, a chosen cell in detail, and every implementation in a table."""
    for question in (pages.peak_memory, pages.provenance, pairing.outdated):
        ask(question, chosen)  # before anything is drawn: what arrives at once, the browser draws once
    level, won = level_in(chosen), ask(ranked.judged, chosen)
    ranked.headline(ranking, won, chosen)
    st.subheader("Fastest implementation by shape")
    ranked.winner_map(ranking, won, chosen)
    st.subheader("Every implementation")
    ranked.ranking_table(ranking, ask(pages.peak_memory, chosen), chosen)
    messages.folded("Every shape", "every_cell", lambda: ranked.winners_table(level, won))
    with st.popover("Download", icon=":material/download:"):  # the browser makes the buttons when it is opened
        for label, table in (
            ("Ranking", lambda: ask(speedups.ranking, chosen)),
            ("Winners", lambda: ranked.winners_csv(level, won)),
        ):
            title = titles.of_slice(label, chosen, versus=True)
            messages.download_slice(f"{label} as CSV", title, chosen, table, f"{label.lower()}_csv")
        ranked.view_downloads(chosen)
    messages.provenance(chosen)


my_card.enter()
layout.header("overview")
page_body.show(show)
