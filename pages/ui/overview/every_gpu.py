"""The winner of every GPU, shape by shape."""

from __future__ import annotations

import html
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, heatmaps, messages, text, titles
from pages.ui.filters.chips import TIMINGS
from pages.ui.shell.data import ask_slowly
from results.recommend import winners
from results.slice import NOT_STATED, Filters, level_in

_NOTHING = "not measured"
_USUAL_HEAD_DIM = "128"  # of most models


def show(chosen: Filters) -> None:
    """Draw a map a dtype: shapes down, GPUs across, each cell with the fastest implementation and its lead."""
    table = ask_slowly(winners.winners_by_gpu, chosen, TIMINGS)
    table = table[table["gpu"].notna() & table["seqlen"].notna()]
    if table.empty:
        messages.nothing_here(chosen)
        return
    widths = [str(int(width)) for width in sorted(table["head_dim"].dropna().unique())]
    counts = table["head_dim"].value_counts()
    most = str(int(counts.index[0])) if len(counts) else None
    default = _USUAL_HEAD_DIM if _USUAL_HEAD_DIM in widths else most
    head_dim = st.pills("head_dim", widths, default=default, required=True, key="gpus_head_dim", bind="query-params")
    rows = cells.winner_cells(level_in(chosen), table[table["head_dim"] == int(head_dim)].reset_index(drop=True))
    gpus = rows["gpu"].drop_duplicates().tolist()
    palette = charts.colours(rows["winner"].dropna().unique().tolist())
    every = replace(chosen, gpu=None, timing=None, shape=None)
    for dtype in cells.dtypes(rows):
        name = cells.dtype_name(dtype)
        st.markdown(f"**{name}**")
        own = cells.of_dtype(rows, dtype)
        title = titles.of_slice(
            f"Fastest implementation by seqlen and GPU, {name}", every, more=(f"head_dim {head_dim}",)
        )
        figure = heatmaps.titled(winners_by_gpu(own, gpus, palette), title)
        st.plotly_chart(figure, key=f"gpus_{dtype}", config=charts.camera(title.file_name), alt=title.what)
    there = [f"{mark} {meaning}" for mark, meaning in cells.MARKS.items() if mark in set(rows["mark"])]
    st.caption(
        f"{' · '.join(map(text.plain, text.slice_parts(every)))}. Device time where available, else eager, else as "
        "published; each GPU against its own baseline.",
        help=". ".join([*there, "A word in a cell is the most frequent failure", "Shapes of a cell are averaged."]),
    )
    _table(rows)


def _table(rows: pd.DataFrame) -> None:
    shown = rows[["gpu", "dtype", "seqlen", "head_dim", "winner", "latency_ms", "speedup", "next", "margin", "cases"]]
    st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        alt="Fastest implementation of every GPU and shape",
        column_config=cells.NUMBERS
        | {
            "gpu": st.column_config.TextColumn("GPU", pinned=True),
            "winner": st.column_config.TextColumn("fastest"),
            "next": st.column_config.TextColumn("next best"),
            "margin": st.column_config.NumberColumn("takes as long", format="%.2f×"),
            "cases": st.column_config.NumberColumn("shapes"),
        },
    )


def winners_by_gpu(rows: pd.DataFrame, gpus: list[str], palette: dict[str, str]) -> go.Figure:
    """Return names in colour, the fuller the more they lead; where nothing won, why."""
    seqlens = sorted(rows["seqlen"].astype(int).unique())
    found = {(int(row["seqlen"]), row["gpu"]): row for row in rows.to_dict("records")}
    lines = [[found.get((seqlen, gpu)) for gpu in gpus] for seqlen in seqlens]
    shades = [[_shade(row, palette) for row in line] for line in lines]
    colours = list(dict.fromkeys(shade for line in shades for shade in line))
    steps = [(edge / len(colours), colour) for at, colour in enumerate(colours) for edge in (at, at + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=[[colours.index(shade) + 0.5 for shade in line] for line in shades],
            x=_on_axis(gpus),
            y=[text.size(seqlen) for seqlen in seqlens],
            text=[[_text(row) for row in line] for line in lines],
            texttemplate="%{text}",
            textfont_color=heatmaps.ink(heatmaps.NOTHING_COLOUR[heatmaps.theme()]),
            customdata=[[_hover(row) for row in line] for line in lines],
            hovertemplate="%{customdata}<extra></extra>",
            colorscale=steps,
            zmin=0,
            zmax=len(colours),
            showscale=False,
            xgap=2,
            ygap=2,
        )
    )
    axes = {"type": "category", "showgrid": False, "fixedrange": True}
    figure.update_xaxes(side="top", tickangle=0, **axes)
    figure.update_yaxes(title="seqlen", autorange="reversed", **axes)
    figure.update_layout(height=90 + 38 * len(seqlens), margin={"l": 0, "r": 0, "t": 56, "b": 0}, dragmode=False)
    return figure


def _on_axis(gpus: list[str]) -> list[str]:
    """Return GPUs' names without their maker, in lines of two words, which fit above a cell of a phone."""
    short = text.without_maker(gpus)
    names = ["GPU not stated" if gpu == NOT_STATED else html.escape(short[gpu]) for gpu in gpus]
    lines = [[" ".join(words[at : at + 2]) for at in range(0, len(words), 2)] for words in map(str.split, names)]
    return ["<br>".join(of_name) for of_name in lines]


def _shade(row: dict | None, palette: dict[str, str]) -> str:
    if _has_nothing(row):
        return heatmaps.NOTHING_COLOUR[heatmaps.theme()]
    if text.missing(row["winner"]):
        return heatmaps.FAILED_COLOUR[heatmaps.theme()]
    return heatmaps.winner_colour(palette, row["winner"], row["margin"])


def _has_nothing(row: dict | None) -> bool:
    return row is None or (text.missing(row["winner"]) and text.missing(row["status"]))


def _text(row: dict | None) -> str:
    if _has_nothing(row):
        return _NOTHING
    if text.missing(row["winner"]):
        return text.status(row["status"])
    return "<br>".join(filter(None, (text.label(row["label"]), text.label(row["below"]))))


def _hover(row: dict | None) -> str:
    return _NOTHING if row is None else f"{html.escape(row['gpu'])}<br>{row['hover']}"
