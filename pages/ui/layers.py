"""Layers: latency by implementation and mode, the share of attention, and ranges of speedup."""

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, colours, detail, maps, messages, tables, text, titles
from pages.ui.filters import chips, select
from pages.ui.shell.data import ask, ask_slowly
from results.levels import level_of
from results.query import layers, speedups
from results.slice import Filters

LEVEL = level_of("layer")
MODES = {"fwd": "Forward", "bwd": "Backward", "fwd_bwd": "Forward and backward"}
COLUMNS = text.WORDS["column_orders"]["layers"]


def show() -> None:
    """Draw our best against PyTorch's, ranges of speedup, every layer and mode, and the share of attention."""
    chosen = chips.current()
    if chosen.gpu is None:
        messages.nothing_measured("layers")
        return
    table = ask_slowly(layers.rows, chosen)
    if table.empty:
        messages.nothing_here(chosen, "layer latencies")
        return
    ranges, duels = layers.ranges(table, chosen.baseline), ask_slowly(layers.duels, chosen)
    headline(duels, ranges, chosen)
    if len(duels):
        st.subheader("Ours and PyTorch's best")
        shown = duels.assign(mode=duels["mode"].map(MODES), behind=duels["behind"].replace("", "none"))
        tables.grid(shown, "Our best over the best of PyTorch's", tables.declared("duels"))
        messages.say("layer_duels")
    st.subheader("Ranges of speedup")
    range_table(ranges, chosen.baseline)
    st.subheader("Every layer")
    for dtype in sorted(table["dtype"].map(cells.dtype_name).unique()):
        st.markdown(f"**{text.plain(dtype)}**")
        layer_table(table, dtype)
    messages.say("every_layer")
    st.subheader("Share of attention")
    shares(table, chosen)
    st.subheader("One layer in detail")
    with st.container(horizontal=True, gap="large"):
        kinds = [*dict.fromkeys(table["workload"])]
        workload = select.one_of_several("Kind of layer", "detail_kind", kinds, format_func=_words)
        mode = select.one_of_several("Mode", "detail_mode", _modes(table), format_func=_words)
    one = replace(chosen, workload=workload, mode=mode)
    if place := maps.pick(LEVEL, ask(speedups.cells, one)):
        detail.cell_detail(one, place)
    messages.folded("Every number", "every_number", lambda: numbers_table(table, chosen))
    messages.provenance(chosen, newer=True)


def headline(duels: pd.DataFrame, ranges: pd.DataFrame, chosen: Filters) -> None:
    """Compare our best with the best of PyTorch's, or name the best over the baseline."""
    if len(duels):
        count = int(duels["layers"].sum())
        mean = float((duels["mean"] ** (duels["layers"] / count)).prod())
        behind = sum(len(names.split(", ")) for names in duels["behind"] if names)
        where = f"slower in {behind} of them" if behind else "slower in none"
        st.markdown(
            f"## On {text.plain(chosen.gpu)} a layer with the best of our kernels is {mean:.2f}× as fast as with the "
            f"best of PyTorch's, on average over {messages.counted(count, 'comparison')} "
            f"({duels['low'].min():.2f}× to {duels['high'].max():.2f}×): {where}"
        )
    elif len(ranges):
        best = ranges.loc[ranges["mean"].idxmax()]
        st.markdown(
            f"## On {text.plain(chosen.gpu)} {text.plain(best['implementation'])} is the fastest over "
            f"{text.plain(str(chosen.baseline))}: "
            f"{text.ratio(best['mean'])} {_words(best['mode']).lower()}"
        )


def range_table(ranges: pd.DataFrame, baseline: str | None) -> None:
    """Draw the ranges of speedup, a row for each implementation and a column for each mode."""
    if ranges.empty:
        st.caption(f"No speedup here: nothing was measured together with {text.plain(str(baseline))}.")
        return
    shown = ranges.assign(
        span=[f"{row.low:.2f} to {row.high:.2f}×, mean {row.mean:.2f}×" for row in ranges.itertuples(index=False)]
    ).pivot(index="implementation", columns="mode", values="span")
    order = ranges.groupby("implementation")["mean"].max().sort_values(ascending=False).index
    columns = [mode for mode in MODES if mode in shown.columns]
    named = shown.loc[order, columns].rename(columns=MODES).fillna("–").reset_index()
    st.table(named, hide_index=True, alt="Ranges of speedup by implementation and mode")
    messages.say("layer_ranges", baseline=text.plain(str(baseline)))


def layer_table(table: pd.DataFrame, dtype: str) -> None:
    """Draw the latencies of a dtype, a row for each layer and mode, and a column for each implementation."""
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
    names = [name for name in colours.ordered(own["implementation"]) if name in wide]
    config = tables.declared("layers")
    config |= {name: st.column_config.TextColumn(f"{name} (ms)", alignment="right") for name in names}
    tables.grid(wide[["layer", "mode", "fastest", "speedup", *names]], f"Latency of every layer in {dtype}", config)


def shares(table: pd.DataFrame, chosen: Filters) -> None:
    """Ask for a mode and a dtype; draw the share of attention by layer, with a mark for each implementation."""
    known = table[table["share"].notna()]
    if known.empty:
        st.caption("No share here: the source states the time of the whole layer only.")
        return
    with st.container(horizontal=True, gap="large"):
        mode = select.one_of_several("Mode", "share_mode", _modes(known), format_func=_words)
        dtype = select.one_of_several("dtype", "share_dtype", sorted(known["dtype"].map(cells.dtype_name).unique()))
    drawn = known[(known["mode"] == mode) & (known["dtype"].map(cells.dtype_name) == dtype)]
    palette = colours.palette(sorted(table["implementation"].unique()))
    hover = "{share:.0f} % ({attention_ms:.3g} of {latency_ms:.3g} ms)".format_map
    marks = charts.lines(drawn.to_dict("records"), "layer", palette, hover, by="share", line="")
    names = [*dict.fromkeys(drawn["layer"])]
    x = charts.titled("Share of attention (%)") | {"range": [0, 100]}
    chart = charts.Chart(marks, x, charts.categories(names[::-1], automargin=True), 110 + 24 * len(names), "y unified")
    what, sliced = f"Share of attention by layer, {dtype}", replace(chosen, mode=mode, workload="layers")
    alt = f"Share of attention by layer and implementation, {_words(mode).lower()}, {dtype}"
    charts.show(chart, titles.of_slice(what, sliced, drawn["run_id"].unique()), key="share_chart", alt=alt)
    messages.say("layer_shares")


def _modes(table: pd.DataFrame) -> list[str]:
    """Return the modes of a table, the modes of layers first; an upload may contain others."""
    return sorted(set(table["mode"]), key=lambda mode: ([*MODES, mode].index(mode), mode))


def _words(value: str) -> str:
    return MODES.get(value, value.removeprefix(f"{LEVEL.name} "))


def numbers_table(table: pd.DataFrame, chosen: Filters) -> None:
    """Draw every number of the slice."""
    shown = tables.in_words(table.assign(mode=table["mode"].map(MODES)))
    config = cells.NUMBERS | tables.declared("layer_numbers")
    tables.grid(shown[[*COLUMNS]], "Every number of layers", config)
    every_mode = replace(chosen, mode=None)
    title = titles.of_slice("Latency of layers", replace(every_mode, workload="layers"), table["run_id"].unique())
    messages.download_slice("Download numbers", title, every_mode, lambda: table[[*COLUMNS]], "layers_csv")
