"""The features of a program: what computes them, what is fastest on each GPU, and when block-sparse masks pay."""

from dataclasses import replace

import streamlit as st

from pages.ui import shapes
from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.charts import ReferenceLine
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import select
from pages.ui.shell.data import ask, ask_slowly
from results.query import block_sparse
from results.recommend import finder

_WHAT = "Speedup of the fastest block-sparse call over the fastest dense call"


def show() -> None:
    """Draw the finder of implementations by feature, and the speedups of block-sparse masks."""
    _features()
    _blocks()


def _features() -> None:
    """Ask for features; draw a row a GPU, who declares them, and the command where nobody measured them."""
    wants = list(finder.WANTS.values())
    words = st.pills("I need", wants, selection_mode="multi", key="finder_needs", bind="query-params")
    wanted = tuple(name for name, said in finder.WANTS.items() if said in (words or ()))
    if not wanted:
        st.info("Choose what your program needs, such as a sliding window and softcap.", icon=":material/tune:")
        return
    able = ask(finder.able, wanted)
    names = ", ".join(map(text.plain, able)) or "none in a run here"
    st.markdown(f"Implementations that declare all of it: {names}.")
    table = ask_slowly(finder.found, wanted)
    missing = table[table["winner"].isna()]["gpu"].tolist()
    if missing or table.empty:
        st.markdown(f"Nobody has measured it on {', '.join(map(text.plain, missing)) or 'any GPU'}. Measure it there:")
        st.code(finder.command(wanted), language=None, wrap_lines=True)
    config = tables.declared("finder")
    tables.grid(table, "The fastest implementation with these features on each GPU", config)


def _blocks() -> None:
    """Draw a line for each sparsity over the number of tokens, or say how to measure it."""
    st.subheader("Block-sparse masks: from which sparsity and length they pay")
    every = ask_slowly(block_sparse.rows)
    if every.empty:
        messages.nothing_measured("blocks")
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
