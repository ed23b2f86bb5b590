"""The winner of every GPU, shape by shape."""

from __future__ import annotations

import html

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, heatmaps, messages, text
from pages.ui.filters.sidebar import TIMINGS
from pages.ui.shell.data import ask_slowly
from results.recommend import winners
from results.slice import Filters, level_in

_NOTHING = "no data"


def show(chosen: Filters) -> None:
    """Draw a map a dtype: shapes down, GPUs across, coloured by who wins there."""
    table = ask_slowly(winners.winners_by_gpu, chosen, TIMINGS)
    table = table[table["gpu"].notna() & table["seqlen"].notna()]
    if table.empty:
        messages.nothing_here(chosen)
        return
    widths = [str(int(width)) for width in sorted(table["head_dim"].dropna().unique())]
    counts = table["head_dim"].value_counts()
    default = str(int(counts.index[0])) if len(counts) else None
    head_dim = st.pills("head_dim", widths, default=default, required=True, key="gpus_head_dim", bind="query-params")
    rows = cells.winner_cells(level_in(chosen), table[table["head_dim"] == int(head_dim)].reset_index(drop=True))
    gpus = rows["gpu"].drop_duplicates().tolist()
    palette = charts.colours(rows["winner"].dropna().unique().tolist())
    for dtype in cells.dtypes(rows):
        own = cells.of_dtype(rows, dtype)
        st.markdown(f"**{cells.dtype_name(dtype)}**")
        alt = f"Fastest implementation by seqlen and GPU, {cells.dtype_name(dtype)}"
        st.plotly_chart(
            winners_by_gpu(own, gpus, palette), key=f"gpus_{dtype}", config=charts.camera("winners-by-gpu"), alt=alt
        )
    st.caption(
        f"{text.slice_words(chosen)} · each GPU in the first of kernel, eager and published time that it has, over its "
        f"own baseline · paler with ≈: a tie. {_NOTHING}: nobody measured it; other words: everything failed, most "
        "often so."
    )
    shown = rows[
        ["gpu", "dtype", "seqlen", "head_dim", "winner", "latency_ms", "p20", "p80", "n", "speedup", "ties", "cases"]
    ]
    st.dataframe(shown, hide_index=True, alt="Winner of every GPU and shape", column_config=cells.NUMBERS)


def winners_by_gpu(rows: pd.DataFrame, gpus: list[str], palette: dict[str, str]) -> go.Figure:
    """Return names in colour; where nothing won, why."""
    seqlens = sorted(rows["seqlen"].astype(int).unique())
    found = {(int(row["seqlen"]), row["gpu"]): row for row in rows.to_dict("records")}
    lines = [[found.get((seqlen, gpu)) for gpu in gpus] for seqlen in seqlens]
    names = sorted(palette)
    of_names = [heatmaps.winner_colour(palette, name, tie) for tie in (False, True) for name in names]
    colours = [charts.EMPTY_COLOUR, heatmaps.FAILED_COLOUR, *of_names]
    steps = [(edge / len(colours), colour) for at, colour in enumerate(colours) for edge in (at, at + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=[[_shade(row, names) for row in line] for line in lines],
            x=gpus,
            y=[text.size(seqlen) for seqlen in seqlens],
            text=[[_text(row) for row in line] for line in lines],
            texttemplate="%{text}",
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
    figure.update_xaxes(side="top", **axes)
    figure.update_yaxes(title="seqlen", autorange="reversed", **axes)
    figure.update_layout(height=90 + 38 * len(seqlens), margin={"l": 0, "r": 0, "t": 56, "b": 0}, dragmode=False)
    return figure


def _shade(row: dict | None, names: list[str]) -> float:
    """Return the middle of a cell's colour among those of nothing, failure, each winner and each tie."""
    if _has_nothing(row):
        return 0.5
    if text.missing(row["winner"]):
        return 1.5
    return 2.5 + names.index(row["winner"]) + len(names) * bool(row["ties"])


def _has_nothing(row: dict | None) -> bool:
    return row is None or (text.missing(row["winner"]) and text.missing(row["status"]))


def _text(row: dict | None) -> str:
    if _has_nothing(row):
        return _NOTHING
    if text.missing(row["winner"]):
        return text.status(row["status"])
    return f"{row['winner']}<br>{row['label']}"


def _hover(row: dict | None) -> str:
    return _NOTHING if row is None else f"{html.escape(row['gpu'])}<br>{row['hover']}"
