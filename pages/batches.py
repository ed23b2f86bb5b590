"""How fast are prompts over a cache and mixed batches, and what do pages and a single call cost?"""

import pandas as pd
import streamlit as st

from pages.ui import shapes
from pages.ui.draw import messages, tables, text
from pages.ui.shell import layout
from pages.ui.shell.data import ask_slowly
from results.derive import geometric_mean
from results.query import batches as query

_COLUMNS = tables.declared("batches")


def headline(gpu: str, timing: str, table: pd.DataFrame) -> None:
    """Name the fastest implementation over the batches that nearly all implementations have, and the next best."""
    grid = table.fillna({"dtype": ""}).pivot_table("of_fastest", ["run_id", "spec", "shape", "dtype"], "implementation")
    grid = grid.loc[:, grid.count() >= 0.9 * grid.count().max()].dropna()
    if grid.empty:
        return
    means = grid.agg(geometric_mean).sort_values()
    first, *others = map(text.plain, means.index)
    over = f": {text.ratio(means.iloc[1] / means.iloc[0])} {others[0]}, the next best, on average" if others else ""
    shown = messages.counted(len(grid), "shape")
    st.markdown(f"## On {text.plain(gpu)} ({shapes.TIMINGS[timing]}) {first} is the fastest{over} over {shown}")


layout.header("batches")
there = ask_slowly(query.there)
if not there:
    messages.nothing_measured("batches")
    st.stop()

with st.container(horizontal=True):
    gpu, timing = shapes.choose_device(there, "batches")
table = ask_slowly(query.rows, gpu, timing)
headline(gpu, timing, table)
facts = []
for column in ("of_separate", "of_contiguous"):
    known = table[table[column].notna() & (table["implementation"] == "triton_varlen")]
    if len(known):
        span = f"{len(known)} batches, {text.span(known[column].min(), known[column].max())}"
        facts.append(messages.fact(column, text.ratio(geometric_mean(known[column])), span))
tables.show_facts(facts)
tables.grid(table.dropna(axis="columns", how="all"), "Latency of each batch", _COLUMNS)
messages.say("batches")
messages.download("Download batches", "attnbench-batches", lambda: table, "batches_csv")
