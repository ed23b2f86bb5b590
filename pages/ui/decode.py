"""Decoding: which kernel is fastest by context and batch, what it reads a second, and its latency by context."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, heatmaps, maps, messages, text, titles
from pages.ui.filters.select import rows_of_one
from results.derive import geometric_mean
from results.levels import Level, level_of
from results.slice import Filters

LEVEL = level_of("decode")
COLUMNS = (
    *("dtype", "seqlen", "batch", "shape", "implementation", "latency_ms", "p20", "p80", "n", "tb_per_s"),
    *("percent_of_copy", "status", "note", "source", "run_id"),
)
_WORDS = {
    "implementation": st.column_config.TextColumn("implementation", pinned=True),
    "run_id": st.column_config.TextColumn("run"),
}
_AT_COPY = "at copy bandwidth"


def bandwidth_headline(table: pd.DataFrame) -> None:
    """Name the highest bandwidth of the slice and where it is reached."""
    known = table[table["tb_per_s"].notna()]
    if known.empty:
        return
    best = known.loc[known["tb_per_s"].idxmax()]
    share = "" if text.missing(best["percent_of_copy"]) else f", {best['percent_of_copy']:.0f} % of the copy bandwidth"
    st.markdown(
        f"{text.plain(best['implementation'])} reads fastest: **{rate_words(best['tb_per_s'])}**{share}, at context "
        f"{text.size(best['seqlen'])} and batch {best['batch']}."
    )


def bandwidth_map(level: Level, table: pd.DataFrame, chosen: Filters) -> None:
    """Ask for an implementation and draw the TB/s of its cells, coloured by their share of the copy bandwidth."""
    known = table[table["tb_per_s"].notna()]
    names = sorted(known["implementation"].unique())
    if not names:
        st.caption("No bandwidth here: the source does not say the whole shape, or nothing has a time.")
        return
    name = st.pills(
        "Implementation",
        names,
        default=widest_and_fastest(known),
        required=True,
        key="show",
        bind="query-params",
        wrap=True,
    )
    own = table[table["implementation"] == name]
    drawn = [_bandwidth_cell(level, place, rows) for place, rows in _cells_of(level, own)]
    shares_known = own["percent_of_copy"].notna().any()
    scale = heatmaps.share_scale() if shares_known else None
    look = maps.Look(lambda row: heatmaps.share_colour(row["share"]), lambda row: rate_words(row["shown"]), scale=scale)
    alt = f"Bandwidth of {name} by {level.columns.label} and {level.rows.label}"
    maps.show(level, drawn, look, "bandwidth_map", alt, selectable=False)
    copy = sorted({rate_words(rate / 1000) for rate in own["measured_gbs"].dropna()})
    rates = f" The colour is its share of what a large copy reaches, {', '.join(copy)}." if copy else ""
    above = "Above 100 %: a copy writes as much as it reads, and decoding hardly writes. " if copy else ""
    st.caption(f"The least traffic of a call over its latency.{rates}", help=above + level.bytes_source)


def widest_and_fastest(known: pd.DataFrame) -> str:
    """Return the implementation with the highest mean bandwidth, of those that have one in most cells."""
    found = known.groupby("implementation")["tb_per_s"].agg(["size", geometric_mean])
    return str(found.loc[found["size"] == found["size"].max(), "geometric_mean"].idxmax())


def latency_chart(table: pd.DataFrame, palette: dict[str, str], chosen: Filters) -> None:
    """Ask for a batch and shape; draw latency by context, a line an implementation, a chart a dtype."""
    timed = table.assign(batch=table["batch"].map(str))
    timed, batch = rows_of_one(timed, "batch", "latency_ms", "decode_batch", "Batch")
    timed, shape = rows_of_one(timed, "shape", "latency_ms", "decode_shape", "Heads and cache")

    shown = [*timed["latency_ms"].dropna(), *timed["copy_ms"].dropna()]

    def draw(rows: pd.DataFrame, dtype: str | None) -> None:
        if not rows["latency_ms"].notna().any():
            st.caption(f"No time in {cells.dtype_name(dtype)}: every implementation failed.")
            return
        what = f"Decode latency by context, {cells.dtype_name(dtype)}"
        alt = f"Latency by context at batch {batch}, one line an implementation, {cells.dtype_name(dtype)}"
        more = [f"batch {batch}", *([shape] if chosen.shape is None else [])]
        title = titles.of_slice(what, chosen, rows["run_id"].unique(), more=more)
        figure = latency_figure(rows, palette, (min(shown), max(shown)))
        charts.show(figure, title, key=f"decode_latency_{dtype}", alt=alt)

    cells.facets(timed, draw)
    if timed["copy_ms"].notna().any():
        st.caption("Dashed: the time that the least traffic takes at the bandwidth of a large copy.")


def latency_figure(rows: pd.DataFrame, palette: dict[str, str], limits: tuple[float, float]) -> go.Figure:
    """Return latency by context, both logarithmic, and the time of a copy of as many bytes, dashed."""
    found = rows.to_dict("records")
    traces = charts.lines(found, "latency_ms", palette, _hover, of="implementation", by="seqlen")
    copies = rows.dropna(subset=["copy_ms"]).drop_duplicates("seqlen").sort_values("seqlen")
    if len(copies):
        traces.append(
            {
                "type": "scatter",
                "x": copies["seqlen"].tolist(),
                "y": copies["copy_ms"].tolist(),
                "name": _AT_COPY,
                "mode": "lines",
                "line": {"color": charts.EMPTY_COLOUR, "width": 1.5, "dash": "dash"},
                "hovertemplate": f"{_AT_COPY}: %{{y:.3r}} ms<extra></extra>",
            }
        )
    axis = charts.with_range(charts.log_axis(*limits), *limits) | {"title": {"text": "Latency (ms)"}}
    return charts.by_size(traces, LEVEL.columns.label, rows["seqlen"], axis, beside=palette)


def numbers_table(table: pd.DataFrame, chosen: Filters) -> None:
    """Draw every number of the slice."""
    shown = table.assign(
        status=[text.status(name) for name in table["status"]],
        source=[text.sources(name) for name in table["source"]],
    )
    st.dataframe(
        shown[[*COLUMNS]].dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Latency and bandwidth of every shape",
        column_config=cells.NUMBERS | cells.axis_columns(LEVEL) | _WORDS,
        column_order=["implementation", *(name for name in COLUMNS if name != "implementation")],
        placeholder="–",
    )
    title = titles.of_slice("Decode latency and bandwidth", chosen, table["run_id"].unique())
    messages.download_slice("Download numbers", title, chosen, lambda: table[[*COLUMNS]], "decode_csv")


def rate_words(tb_per_s: float) -> str:
    """Write a bandwidth in TB/s, below one in GB/s."""
    return f"{tb_per_s:.2f} TB/s" if tb_per_s >= 1 else f"{text.significant(1000 * tb_per_s)} GB/s"


def _cells_of(level: Level, table: pd.DataFrame) -> list[tuple[tuple, pd.DataFrame]]:
    """Return the rows of each cell, with its dtype and place."""
    return list(table.groupby([*cells.place_columns(level)], dropna=False, sort=True))


def _bandwidth_cell(level: Level, place: tuple, rows: pd.DataFrame) -> dict:
    """Return a cell of the map: the geometric mean of its shapes, or why it has no number."""
    rate, share = geometric_mean(rows["tb_per_s"].dropna()), geometric_mean(rows["percent_of_copy"].dropna())
    latency = geometric_mean(rows["latency_ms"].dropna())
    cell = dict(zip(cells.place_columns(level), place, strict=True))
    status = rows["status"].iloc[0] if rate is None else "ok"
    sizes = f"{level.columns.label} {cell['seqlen']}, {level.rows.label} {cell['batch']}"
    lines = [sizes, text.ms(latency)] if rate else [sizes, text.status(status)]
    lines += [rate_words(rate)] if rate else []
    lines += [f"{share:.0f} % of the copy bandwidth"] if share else []
    lines += [f"geometric mean of {len(rows)} shapes"] if len(rows) > 1 else []
    return cell | {"shown": rate, "status": status, "failure": None, "hover": "<br>".join(lines), "share": share or 0.0}


def _hover(row: dict) -> str:
    rate = "" if text.missing(row["tb_per_s"]) else f", {rate_words(row['tb_per_s'])}"
    share = "" if text.missing(row["percent_of_copy"]) else f" ({row['percent_of_copy']:.0f} % of copy)"
    return f"{text.ms(row['latency_ms'])}{rate}{share}"
