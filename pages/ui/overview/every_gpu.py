"""The fastest implementation of every GPU and shape."""

import html
from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, colours, maps, messages, tables, text, titles
from pages.ui.draw.maps import MapAxis
from pages.ui.filters import select
from pages.ui.filters.chips import TIMINGS
from pages.ui.shell.data import ask_slowly
from results.levels import Level
from results.recommend import winners
from results.slice import NOT_STATED, Filters, level_in

_USUAL_HEAD_DIM = 128  # the head_dim of most models


def show(chosen: Filters) -> None:
    """Draw a map for each dtype: shapes down, GPUs across, each cell with the fastest implementation and its lead."""
    table = ask_slowly(winners.winners_by_gpu, chosen, TIMINGS)
    table = table[table["gpu"].notna() & table["seqlen"].notna()]
    if table.empty:
        messages.nothing_here(chosen)
        return
    widths = [str(int(width)) for width in sorted(table["head_dim"].dropna().unique())]
    head_dim = select.pills("head_dim", "gpus_head_dim", widths, usual_head_dim(table))
    level = level_in(chosen)
    found = gpu_cells(level, table, int(head_dim))
    rows = found.to_dict("records")
    gpus = found["gpu"].drop_duplicates().tolist()
    names = found["winner"].dropna().unique().tolist()
    every = replace(chosen, gpu=None, timing=None, shape=None)
    title = titles.of_slice("Fastest implementation by seqlen and GPU", every, more=(f"head_dim {head_dim}",))
    short = text.without_maker(gpus) | {NOT_STATED: "GPU not stated"}
    across = MapAxis("gpu", "GPU", gpus, short.__getitem__)
    look = replace(maps.winners(colours.palette(names), names), legend=(), names={})
    maps.show(level, rows, look, "gpu_map", title.what, title=title, across=across)
    there = [f"{mark} {meaning}" for mark, meaning in cells.MARKS.items() if mark in set(found["mark"])]
    st.caption(
        f"{' · '.join(map(text.plain, text.slice_parts(every)))}. Device time if available, else eager, else as "
        "published; each GPU against its own baseline.",
        help=". ".join([*there, "A word in a cell is the most frequent failure", "Shapes of a cell are averaged."]),
    )
    _table(found)


def usual_head_dim(table: pd.DataFrame) -> str:
    """Return the head_dim of most models if the table has it, else the most frequent one."""
    counts = table["head_dim"].value_counts()
    return str(_USUAL_HEAD_DIM if _USUAL_HEAD_DIM in counts.index else int(counts.index[0]))


def gpu_cells(level: Level, table: pd.DataFrame, head_dim: int) -> pd.DataFrame:
    """Return the winners of every GPU at one head_dim, with the words of the map."""
    rows = cells.winner_cells(level, table[table["head_dim"] == head_dim].reset_index(drop=True))
    return rows.assign(
        hover=[f"{html.escape(gpu)}<br>{said}" for gpu, said in zip(rows["gpu"], rows["hover"], strict=True)]
    )


def _table(rows: pd.DataFrame) -> None:
    shown = rows[["gpu", "dtype", "seqlen", "head_dim", "winner", "latency_ms", "speedup", "next", "margin", "cases"]]
    config = cells.NUMBERS | cells.WINNERS | {"gpu": tables.words("GPU", pinned=True)}
    tables.grid(shown, "Fastest implementation of every GPU and shape", config)
