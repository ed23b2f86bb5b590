"""Block-sparse masks: from which sparsity and number of tokens on they are faster than dense calls."""

from dataclasses import replace

import streamlit as st

from pages.ui import shapes
from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.charts import ReferenceLine
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import select
from pages.ui.shell.data import ask_slowly
from results.query import block_sparse

_WHAT = "Speedup of the fastest block-sparse call over the fastest dense call"


def show() -> None:
    """Draw a line for each sparsity over the number of tokens, or say how to measure it."""
    st.subheader("Block-sparse masks: from which sparsity and length they pay")
    every = ask_slowly(block_sparse.rows)
    if every.empty:
        messages.nothing_measured("No run has measured a block-sparse mask yet.", ":material/grid_on:", "block_sparse")
        return
    with st.container(horizontal=True):
        there = list(every[["gpu", "timing"]].drop_duplicates().itertuples(index=False, name=None))
        gpu, timing = shapes.choose_device(there, "blocks")
        table = every[(every["gpu"] == gpu) & (every["timing"] == timing)]
        modes = [each for each in text.MODE_WORDS if each in set(table["mode"])]
        mode = select.named_choice("Mode", "blocks_mode", modes, modes[0], text.MODE_WORDS.__getitem__, width=150)
    table = table[table["mode"] == mode]
    pays = block_sparse.pays_from(table)
    said = (
        f"{text.size(tokens)} {f'from {pays[tokens]:g} % on' if tokens in pays else 'not in what was measured'}"
        for tokens in sorted(table["tokens"].unique())
    )
    st.markdown(f"Tokens, and the share of blocks left out from which it is faster than dense: {'; '.join(said)}.")
    best = table.sort_values("speedup", ascending=False).drop_duplicates(["tokens", "sparsity"])
    best = best.assign(left_out=[f"{sparsity:g} %" for sparsity in best["sparsity"]])
    names = [f"{sparsity:g} %" for sparsity in sorted(best["sparsity"].unique())]
    drawn = charts.lines(best.to_dict("records"), "speedup", colours.palette(names), _hover, of="left_out", by="tokens")
    chart = charts.by_size(drawn, "tokens", best["tokens"], charts.titled("speedup"))
    runs = ", ".join(sorted(table["run_id"].unique()))
    title = ChartTitle(_WHAT, (gpu, f"{text.MODE_WORDS[mode]}, share of blocks left out"), f"run {runs}")
    charts.show(replace(chart, rules=[ReferenceLine(1.0)]), title, key="blocks_chart")
    columns = tables.declared("block_sparse")
    tables.grid(table[[*columns]], "Times of block-sparse calls", columns)
    messages.download("Download block-sparse calls", "attnbench-block-sparse", lambda: table, "blocks_csv")


def _hover(row: dict) -> str:
    return f"{text.ratio(row['speedup'])}, {row['implementation']} over {row['dense']}"
