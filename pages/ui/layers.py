"""Layers: kinds of attention layers by implementation and mode, the share of attention, ranges of speedup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text, titles
from results.levels import level_of
from results.slice import Filters

LEVEL = level_of("layer")
MODES = {"fwd": "Forward", "bwd": "Backward", "fwd_bwd": "Forward and backward"}
COLUMNS = (
    *("dtype", "layer", "mode", "implementation", "latency_ms", "speedup", "share", "p20", "p80", "n", "status"),
    *("note", "source", "run_id"),
)
_SHARE = "Share of attention (%)"


def headline(duels: pd.DataFrame, ranges: pd.DataFrame, chosen: Filters) -> None:
    """Answer the page's question: our best beside the best of PyTorch's, or the best over the baseline."""
    if len(duels):
        count = int(duels["layers"].sum())
        mean = float((duels["mean"] ** (duels["layers"] / count)).prod())
        behind = sum(len(names.split(", ")) for names in duels["behind"] if names)
        where = f"slower in {behind} of them" if behind else "slower in none"
        st.markdown(
            f"#### On {text.plain(chosen.gpu)} a layer with the best of our kernels is {mean:.2f}× as fast as with the "
            f"best of PyTorch's, on average over {messages.counted(count, 'comparison')} "
            f"({duels['low'].min():.2f}× to {duels['high'].max():.2f}×): {where}"
        )
    elif len(ranges):
        best = ranges.loc[ranges["mean"].idxmax()]
        st.markdown(
            f"#### On {text.plain(chosen.gpu)} {text.plain(best['implementation'])} is the fastest over "
            f"{text.plain(str(chosen.baseline))}: "
            f"{text.ratio(best['mean'])} {_words(best['mode']).lower()}"
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
    named = shown.loc[order, columns].rename(columns=MODES).fillna("–").reset_index()
    st.table(named, hide_index=True, alt="Ranges of speedup by implementation and mode")
    st.caption(
        f"Speedup over {text.plain(str(baseline))}: lowest to highest over the layers, and their geometric mean."
    )


def duel_table(duels: pd.DataFrame) -> None:
    """Draw our best over the best of PyTorch's."""
    shown = duels.assign(mode=duels["mode"].map(MODES), behind=duels["behind"].replace("", "none"))
    words = {"low": "lowest", "mean": "geometric mean", "high": "highest", "attention": "attention alone"}
    config = {name: st.column_config.NumberColumn(label, format="%.2f×") for name, label in words.items()}
    config["behind"] = st.column_config.TextColumn("slower in", width="large")
    alt = "Our best over the best of PyTorch's"
    st.dataframe(shown, hide_index=True, alt=alt, column_config=config, placeholder="–")
    st.caption(
        "Best time of PyTorch's implementations over the best of ours, layer by layer, within one run.",
        help="Projections cost both the same, so a layer gains less than its attention does. Attention alone: the "
        "geometric mean of the same ratio without the projections.",
    )


def layer_table(table: pd.DataFrame, dtype: str) -> None:
    """Draw the latencies of a dtype, a layer and mode a row and an implementation a column."""
    own = table[table["dtype"].map(cells.dtype_name) == dtype]
    words = [
        text.status(row.status) if pd.isna(row.latency_ms) else text.significant(row.latency_ms)
        for row in own.itertuples(index=False)
    ]
    wide = own.assign(shown=words).pivot_table(
        index=["layer", "mode"], columns="implementation", values="shown", aggfunc="first", sort=False
    )
    known = own[own["latency_ms"].notna()]
    best = known.loc[known.groupby(["layer", "mode"])["latency_ms"].idxmin()].set_index(["layer", "mode"])
    wide.insert(0, "fastest", best["implementation"])
    wide.insert(1, "speedup", best["speedup"])
    wide = wide.reset_index()
    wide["mode"] = pd.Categorical(wide["mode"].map(MODES), list(MODES.values()), ordered=True)
    names = [name for name in charts.ordered(own["implementation"]) if name in wide]
    st.dataframe(
        wide[["layer", "mode", "fastest", "speedup", *names]],
        hide_index=True,
        alt=f"Latency of every layer in {dtype}",
        placeholder="–",
        column_config={
            "layer": st.column_config.TextColumn("layer", width="medium", pinned=True),
            "speedup": st.column_config.NumberColumn("speedup", format="%.2f×", help="Of the fastest"),
            **{name: st.column_config.TextColumn(f"{name} (ms)", alignment="right") for name in names},
        },
    )


def share_figure(table: pd.DataFrame, palette: dict[str, str]) -> go.Figure:
    """Return the share of attention in the layer's time, a group of bars a layer and a bar an implementation."""
    figure = go.Figure()
    for name in charts.ordered(table["implementation"]):
        rows = table[table["implementation"] == name]
        figure.add_bar(
            x=rows["layer"].tolist(),
            y=rows["share"].tolist(),
            name=name,
            marker_color=palette.get(name),
            customdata=rows[["attention_ms", "latency_ms"]].to_numpy().tolist(),
            text=[f"{share:.0f}" for share in rows["share"]],
            textposition="outside",
            textangle=-90,
            cliponaxis=False,
            hovertemplate=f"{name}: %{{y:.0f}} % (%{{customdata[0]:.3r}} of %{{customdata[1]:.3r}} ms)<extra></extra>",
        )
    figure.update_yaxes(title=_SHARE, range=[0, 108])
    figure.update_xaxes(tickangle=-40, automargin=True)
    figure.update_layout(
        height=540,
        barmode="group",
        margin=charts.CAMERA_MARGIN,
        legend=charts.LEGEND,
        hovermode="x unified",
    )
    return figure


def shares(table: pd.DataFrame, palette: dict[str, str], chosen: Filters) -> None:
    """Ask for a mode and a dtype, and draw the share of attention where it was measured."""
    known = table[table["share"].notna()]
    if known.empty:
        st.caption("No share here: the source states the time of the whole layer only.")
        return
    with st.container(horizontal=True, gap="large"):
        mode = _one_of("Mode", _modes(known), "share_mode")
        dtype = _one_of("dtype", sorted(known["dtype"].map(cells.dtype_name).unique()), "share_dtype")
    drawn = known[(known["mode"] == mode) & (known["dtype"].map(cells.dtype_name) == dtype)]
    alt = f"Share of attention by layer and implementation, {_words(mode).lower()}, {dtype}"
    title = titles.of_slice(
        f"Share of attention by layer, {dtype}", replace(chosen, mode=mode, workload="layers"), drawn["run_id"].unique()
    )
    charts.show(share_figure(drawn, palette), title, key="share_chart", alt=alt)
    st.caption(
        "Time of the attention alone over the time of the whole layer, in one run.",
        help="The attention is timed on the views that the projections give, with inputs cold in L2: of a small layer "
        "the share is an upper estimate. Letters: batch, heads, key heads, head_dim, seqlen.",
    )


def one_kind(table: pd.DataFrame, chosen: Filters) -> Filters:
    """Return the slice narrowed to one kind of layer and one mode, each asked for where there are several."""
    with st.container(horizontal=True, gap="large"):
        workload = _one_of("Kind of layer", list(dict.fromkeys(table["workload"])), "detail_kind")
        mode = _one_of("Mode", _modes(table), "detail_mode")
    return replace(chosen, workload=workload, mode=mode)


def _modes(table: pd.DataFrame) -> list[str]:
    """Return the modes of a table, first those that a layer has; an upload may name others."""
    return sorted(set(table["mode"]), key=lambda mode: ([*MODES, mode].index(mode), mode))


def _one_of(label: str, values: Sequence[str], key: str) -> str:
    """Ask for one of some values, the first at first; of one there is nothing to ask."""
    if len(values) == 1:
        return values[0]
    return st.pills(
        label, values, default=values[0], required=True, key=key, bind="query-params", format_func=_words, wrap=True
    )


def _words(value: str) -> str:
    return MODES.get(value, value.removeprefix(f"{LEVEL.name} "))


def numbers_table(table: pd.DataFrame, chosen: Filters) -> None:
    """Draw every number of the slice."""
    shown = table.assign(
        mode=table["mode"].map(MODES),
        status=[text.status(name) for name in table["status"]],
        source=[text.sources(name) for name in table["source"]],
    )
    config = cells.NUMBERS | {
        "share": st.column_config.NumberColumn("share of attention", format="%.0f %%"),
        "layer": st.column_config.TextColumn("layer", pinned=True),
        "run_id": st.column_config.TextColumn("run"),
    }
    columns = [*COLUMNS]
    alt = "Every number of layers"
    st.dataframe(shown[columns], hide_index=True, alt=alt, column_config=config, placeholder="–")
    title = titles.of_slice(
        "Latency of layers", replace(chosen, mode=None, workload="layers"), table["run_id"].unique()
    )
    messages.download_slice("Download numbers", title, replace(chosen, mode=None), lambda: table[columns], "layers_csv")
