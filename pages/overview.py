"""Which implementation is fastest for my GPU and shapes, by how much, and does it fit?"""

from __future__ import annotations

import streamlit as st

from pages.ui import cells, charts, detail, filters, messages, words
from pages.ui import ranking as ranked
from pages.ui.data import ask
from results import queries

messages.header("Overview", ":material/leaderboard:", "Which attention is fastest here, by how much, and does it fit?")
chosen = filters.current()
ranking = ask(queries.ranking, chosen)
if ranking.empty:
    messages.nothing_here(chosen)
    st.stop()

won = cells.winner_cells(ask(queries.winners, chosen))
ranked.headline(ranking, won, chosen)
st.subheader("Fastest implementation by shape")
palette = charts.colours(ranking["implementation"].tolist())
names = sorted(won["winner"].dropna().unique())
clicked = cells.facets(
    won,
    lambda rows, seqlens, head_dims: charts.winner_map(rows, seqlens, head_dims, palette, names),
    "winner_map",
    "Fastest implementation by seqlen and head_dim",
)
messages.slice_caption(
    chosen,
    rows=len(won),
    statistic=words.statistic(ranking["statistic"]),
    note="Numbers are the speedup of the fastest over the baseline, or its latency where the baseline has none. "
    "Paler with ≈: a tie, within 2 % or overlapping p20 to p80. Select a cell for its details.",
)
if clicked:
    detail.cell_detail(chosen, clicked)
st.subheader("Every implementation")
ranked.ranking_table(ranking, ask(queries.fits, chosen))
with st.expander("Every cell", icon=":material/table_rows:"):
    cells.winners_table(won)
with st.container(horizontal=True):
    messages.download("Download ranking", "ranking", lambda: ranking, "ranking_csv")
    messages.download("Download winners", "winners", lambda: cells.winners_csv(won), "winners_csv")
messages.provenance(chosen)
