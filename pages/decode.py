"""Which decode kernel is fastest, what share of the bandwidth does it reach, and what do pages cost?"""

from functools import partial

import pandas as pd
import streamlit as st

from pages.ui import cache_costs, decode, frontier
from pages.ui.draw import colours, messages, titles
from pages.ui.filters import chips
from pages.ui.overview import ranking as ranked
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask, ask_slowly
from results.query import bandwidth, pages, speedups
from results.query.cache_costs import rows as costs_of
from results.slice import Filters


def show() -> None:
    """Draw the winner of each cell, the bandwidth, latency by context, costs of cache formats, and every number."""
    chosen = chips.current()
    if chosen.gpu is None:
        messages.nothing_measured("decode")
        return
    ranking = ask(speedups.ranked, chosen)
    if not ranking:
        messages.nothing_here(chosen, "decode latencies")
        return
    won, table = ask_slowly(ranked.judged, chosen), ask_slowly(bandwidth.rows, chosen)
    ranked.headline(ranking, won, chosen)
    decode.bandwidth_headline(table)
    palette = colours.palette([row["implementation"] for row in ranking])
    st.subheader("Fastest implementation by context and batch")
    ranked.winner_map(ranking, won, chosen)
    st.subheader("Achieved bandwidth")
    decode.bandwidth_map(decode.LEVEL, table, chosen)
    st.subheader("Latency by context")
    decode.latency_chart(table, palette, chosen)
    frontier.section(table[table["seqlen_q"] == 1], "attention of one layer", partial(frontier_title, chosen))
    cache_costs.section(decode.LEVEL, ask_slowly(costs_of, chosen), chosen)
    st.subheader("Every implementation")
    ranked.ranking_table(ranking, ask(pages.fits, chosen), chosen)
    messages.folded("Every number", "every_number", lambda: decode.numbers_table(table, chosen))
    messages.download_latencies(chosen)
    messages.provenance(chosen)


def frontier_title(chosen: Filters, what: str, rows: pd.DataFrame) -> titles.ChartTitle:
    """Return the title of the costs of a slice."""
    return titles.of_slice(what, chosen, rows["run_id"].unique(), more=rows["shape"].unique())


layout.header("decode")
page_body.show(show)
