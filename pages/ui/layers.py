"""Layers: kinds of attention layers by implementation and mode, the share of attention, ranges of speedup."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text
from results.levels import level_of

LEVEL = level_of("layer")
COMMAND = "python -m runner run attention_layers"
MODES = {"fwd": "Forward", "bwd": "Backward", "fwd_bwd": "Both"}
COLUMNS = (
    *("dtype", "layer", "mode", "implementation", "latency_ms", "speedup", "share", "p20", "p80", "n", "status"),
    *("note", "source", "run_id"),
)
_SHARE = "Share of attention (%)"


def nothing_here() -> None:
    """Say what measures layers, where no GPU has a number of them."""
    st.info(
        "No layer results yet. A sweep times projections around every attention, forward and backward.",
        icon=":material/layers:",
    )
    st.code(COMMAND, language=None)
    with st.container(horizontal=True):
        link = {"sweep": "attention_layers_quick"}
        st.page_link("pages/run_sweep.py", label="Run sweep", icon=":material/play_circle:", query_params=link)
        st.page_link("pages/upload.py", label="Upload results", icon=":material/upload:")


def headline(duels: pd.DataFrame, ranges: pd.DataFrame, baseline: str | None) -> None:
    """Answer the page's question: our best beside the best of PyTorch's, or the best over the baseline."""
    if len(duels):
        mean = float((duels["mean"] ** (duels["layers"] / duels["layers"].sum())).prod())
        behind = sum(bool(names) for names in duels["behind"])
        where = (
            "ahead in every layer"
            if not behind
            else f"slower in some layer at {behind} of {len(duels)} dtypes and modes"
        )
        st.markdown(
            f"Our best attention inside makes a layer **{mean:.2f}×** as fast as the best of PyTorch's (geometric mean "
            f"over layers, modes and dtypes; {duels['low'].min():.2f} to {duels['high'].max():.2f}×): {where}."
        )
    elif len(ranges):
        best = ranges.loc[ranges["mean"].idxmax()]
        st.markdown(
            f"{text.plain(best['implementation'])} gains most over {text.plain(str(baseline))}: "
            f"**{best['mean']:.2f}×** in {MODES[best['mode']].lower()}."
        )


def range_table(ranges: pd.DataFrame, baseline: str | None) -> None:
    """Draw the ranges of speedup, an implementation a row and a mode a column, as reports sum them up."""
    if ranges.empty:
        st.caption(f"No speedup here: nothing stands beside {text.plain(str(baseline))}.")
        return
    shown = ranges.assign(
        span=[f"{row.low:.2f} to {row.high:.2f}×, mean {row.mean:.2f}×" for row in ranges.itertuples(index=False)]
    ).pivot(index="implementation", columns="mode", values="span")
    order = ranges.groupby("implementation")["mean"].max().sort_values(ascending=False).index
    columns = [mode for mode in MODES if mode in shown.columns]
    named = shown.loc[order, columns].rename(columns=MODES).fillna("").reset_index()
    st.table(named, hide_index=True, alt="Ranges of speedup by implementation and mode")
    st.caption(
        f"Speedup over {text.plain(str(baseline))}: lowest to highest over the layers, and their geometric mean."
    )


def duel_table(duels: pd.DataFrame) -> None:
    """Draw our best over the best of PyTorch's."""
    shown = duels.assign(mode=duels["mode"].map(MODES), behind=duels["behind"].replace("", "none"))
    number = st.column_config.NumberColumn(format="%.2f×")
    config = {name: number for name in ("low", "mean", "high")}
    config["behind"] = st.column_config.TextColumn("slower in", width="large")
    st.dataframe(shown, hide_index=True, alt="Our best over the best of PyTorch's", column_config=config)
    st.caption("The best time of PyTorch's implementations over the best of ours, layer by layer, within one run.")


def layer_table(table: pd.DataFrame, dtype: str) -> None:
    """Draw the latencies of a dtype, a layer and mode a row and an implementation a column."""
    own = table[table["dtype"].map(cells.dtype_name) == dtype]
    words = [
        text.status(row.status) if pd.isna(row.latency_ms) else f"{row.latency_ms:.4g}"
        for row in own.itertuples(index=False)
    ]
    wide = own.assign(shown=words).pivot_table(
        index=["layer", "mode"], columns="implementation", values="shown", aggfunc="first", sort=False
    )
    known = own[own["latency_ms"].notna()]
    best = known.loc[known.groupby(["layer", "mode"])["latency_ms"].idxmin()].set_index(["layer", "mode"])
    wide["best"] = best["implementation"]
    wide["best speedup"] = best["speedup"]
    wide = wide.reset_index()
    wide["mode"] = pd.Categorical(wide["mode"].map(MODES), list(MODES.values()), ordered=True)
    st.dataframe(
        wide.fillna({"best": ""}),
        hide_index=True,
        alt=f"Latency of every layer in {dtype}",
        column_config={
            "layer": st.column_config.TextColumn("layer", width="medium", pinned=True),
            "best speedup": st.column_config.NumberColumn("best speedup", format="%.2f×"),
        },
    )
    st.caption("Milliseconds of a call, or why there is no number. Letters: batch, heads, key heads, head_dim, seqlen.")


def share_figure(table: pd.DataFrame, palette: dict[str, str]) -> go.Figure:
    """Return the share of attention in the layer's time, a group of bars a layer and a bar an implementation."""
    figure = go.Figure()
    for name, rows in table.groupby("implementation", sort=True):
        figure.add_bar(
            x=rows["layer"].tolist(),
            y=rows["share"].tolist(),
            name=name,
            marker_color=palette.get(name),
            customdata=rows[["attention_ms", "latency_ms"]].to_numpy().tolist(),
            hovertemplate=f"{name}<br>%{{x}}: %{{y:.0f}} %<br>%{{customdata[0]:.4g}} of %{{customdata[1]:.4g}} ms"
            "<extra></extra>",
        )
    figure.update_yaxes(title=_SHARE, rangemode="tozero")
    figure.update_xaxes(tickangle=-40, automargin=True)
    figure.update_layout(
        height=460,
        barmode="group",
        margin=charts.CAMERA_MARGIN,
        legend={"orientation": "h", "y": 1.08, "yanchor": "bottom"},
    )
    return figure


def shares(table: pd.DataFrame, palette: dict[str, str]) -> None:
    """Ask for a mode and a dtype, and draw the share of attention where it was measured."""
    known = table[table["share"].notna()]
    if known.empty:
        st.caption("No share here: the source gives the time of the layer alone.")
        return
    modes = [mode for mode in MODES if mode in set(known["mode"])]
    left, right = st.columns(2)
    mode = left.pills("Mode", modes, default=modes[0], required=True, key="share_mode", format_func=MODES.get)
    dtypes = sorted(known["dtype"].map(cells.dtype_name).unique())
    dtype = right.pills("dtype", dtypes, default=dtypes[0], required=True, key="share_dtype")
    drawn = known[(known["mode"] == mode) & (known["dtype"].map(cells.dtype_name) == dtype)]
    alt = f"Share of attention by layer and implementation, {MODES[mode].lower()}, {dtype}"
    config = charts.camera(f"layers-share-{mode}-{dtype}")
    st.plotly_chart(share_figure(drawn, palette), key="share_chart", config=config, alt=alt)
    st.caption(
        "The attention alone, on the views that the projections give, over the whole layer, timed in the same run. "
        "Alone its inputs are cold in L2, so of a small layer the share is an upper estimate. The camera saves a PNG."
    )


def numbers_table(table: pd.DataFrame) -> None:
    """Draw every number of the slice."""
    shown = table.assign(
        mode=table["mode"].map(MODES),
        status=[text.status(name) for name in table["status"]],
        note=table["note"].fillna(""),
        source=[text.sources(name) for name in table["source"]],
    )
    config = cells.NUMBERS | {"share": st.column_config.NumberColumn("share of attention", format="%.0f %%")}
    columns = [*COLUMNS]
    st.dataframe(shown[columns], hide_index=True, alt="Every number of layers", column_config=config)
    messages.download("Download numbers", "layers", lambda: table[columns], "layers_csv")
