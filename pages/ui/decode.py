"""Decoding: bandwidth by context and batch, and latency by context."""

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, colours, maps, messages, tables, text, titles
from pages.ui.draw.charts import Chart
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import select
from results.derive import geometric_mean
from results.levels import Level, level_of
from results.slice import Filters

LEVEL = level_of("decode")
COLUMNS = (
    "dtype", "seqlen", "batch", "shape", "implementation", "latency_ms", "p20", "p80", "n", "tb_per_s",
    "percent_of_copy", "status", "note", "source", "run_id",
)  # fmt: skip
_AT_COPY = "at copy bandwidth"


def bandwidth_headline(table: pd.DataFrame) -> None:
    """Name the highest bandwidth of the slice and its shape."""
    known = table[table["tb_per_s"].notna()]
    if known.empty:
        return
    best = known.loc[known["tb_per_s"].idxmax()]
    percent = best["percent_of_copy"]
    share = "" if text.missing(percent) else f", {percent:.0f} % of the bandwidth of a copy, which also writes"
    st.markdown(
        f"{text.plain(best['implementation'])} reads fastest: **{rate_words(best['tb_per_s'])}**{share}, at context "
        f"{text.size(best['seqlen'])} and batch {best['batch']}."
    )


def bandwidth_map(level: Level, table: pd.DataFrame, chosen: Filters) -> None:
    """Ask for an implementation; draw the TB/s of its cells, colored by their share of the copy bandwidth."""
    known = table[table["tb_per_s"].notna()]
    names = sorted(known["implementation"].unique())
    if not names:
        st.caption("No bandwidth here: the source does not state the whole shape, or nothing has a time.")
        return
    name = select.pills("Implementation", "show", names, widest_and_fastest(known))
    own = table[table["implementation"] == name]
    places = own.groupby([*cells.place_columns(level)], dropna=False, sort=True)
    drawn = [_bandwidth_cell(level, place, rows) for place, rows in places]
    shares_known = own["percent_of_copy"].notna().any()
    scale = colours.share_scale() if shares_known else None
    look = maps.Look(lambda row: colours.share_colour(row["share"]), lambda row: rate_words(row["shown"]), scale=scale)
    alt = f"Bandwidth of {name} by {level.columns.label} and {level.rows.label}"
    maps.show(level, drawn, look, "bandwidth_map", alt)
    copy = sorted({rate_words(rate / 1000) for rate in own["measured_gbs"].dropna()})
    rates = f" The color is its share of the bandwidth of a large copy, {', '.join(copy)}." if copy else ""
    above = "Above 100 %: a copy writes as much as it reads, and decoding hardly writes. " if copy else ""
    st.caption(f"The least traffic of a call over its latency.{rates}", help=above + level.bytes_source)


def widest_and_fastest(known: pd.DataFrame) -> str:
    """Return the implementation with the highest mean bandwidth among those with numbers in most cells."""
    found = known.groupby("implementation")["tb_per_s"].agg(["size", geometric_mean])
    return str(found.loc[found["size"] == found["size"].max(), "geometric_mean"].idxmax())


def latency_chart(table: pd.DataFrame, palette: dict[str, str], chosen: Filters) -> None:
    """Ask for a batch and shape; draw latency by context, one chart for each dtype."""
    if table.empty:
        st.caption("No time here: the source states no context, or every implementation failed.")
        return
    timed = table.assign(batch=table["batch"].map(str))
    timed, batch = select.rows_of_one(timed, "batch", "latency_ms", "decode_batch", "Batch")
    timed, shape = select.rows_of_one(timed, "shape", "latency_ms", "decode_shape", "Heads and cache")
    for dtype in cells.dtypes(timed):
        if not cells.of_dtype(timed, dtype)["latency_ms"].notna().any():
            st.caption(f"No time in {cells.dtype_name(dtype)}: every implementation failed.")
            timed = timed.drop(cells.of_dtype(timed, dtype).index)
    shown = [*timed["latency_ms"].dropna(), *timed["copy_ms"].dropna()]
    more = [f"batch {batch}", *([shape] if chosen.shape is None else [])]

    def chart(rows: pd.DataFrame, dtype: str | None) -> Chart:
        return latency_lines(rows, palette, (min(shown), max(shown)))

    def title(rows: pd.DataFrame, dtype: str) -> ChartTitle:
        return titles.of_slice(f"Decode latency by context, {dtype}", chosen, rows["run_id"].unique(), more=more)

    alt = f"Latency by context at batch {batch}, one line for each implementation"
    charts.show_by_dtype(timed, chart, title, "decode_latency", alt)
    if timed["copy_ms"].notna().any():
        st.caption("Dashed: the time of the least traffic at the bandwidth of a large copy.")


def latency_lines(rows: pd.DataFrame, palette: dict[str, str], limits: tuple[float, float]) -> Chart:
    """Return latency by context, both logarithmic, and dashed the time of a copy of the same bytes."""
    found = charts.lines(rows.to_dict("records"), "latency_ms", palette, _hover)
    copies = rows.dropna(subset=["copy_ms"]).drop_duplicates("seqlen").sort_values("seqlen").to_dict("records")
    if copies:
        said = [f"{_AT_COPY}: {row['copy_ms']:.3g} ms" for row in copies]
        line = charts.reference(_AT_COPY, [row["seqlen"] for row in copies], [row["copy_ms"] for row in copies])
        found.append(replace(line, hover=said))
    axis = charts.with_range(charts.log_axis(*limits), *limits) | charts.titled("Latency (ms)")
    return charts.by_size(found, LEVEL.columns.label, rows["seqlen"], axis, room_for=palette)


def numbers_table(table: pd.DataFrame, chosen: Filters) -> None:
    """Draw every number of the slice."""
    shown = tables.in_words(table)[[*COLUMNS]].dropna(axis="columns", how="all")
    config = cells.NUMBERS | cells.axis_columns(LEVEL)
    config |= {"implementation": tables.words("implementation", pinned=True), "run_id": tables.RUN}
    order = ["implementation", *(name for name in COLUMNS if name != "implementation")]
    tables.grid(shown, "Latency and bandwidth of every shape", config, column_order=order)
    title = titles.of_slice("Decode latency and bandwidth", chosen, table["run_id"].unique())
    messages.download_slice("Download numbers", title, chosen, lambda: table[[*COLUMNS]], "decode_csv")


def rate_words(tb_per_s: float) -> str:
    """Write a bandwidth in TB/s, below one in GB/s."""
    return f"{tb_per_s:.2f} TB/s" if tb_per_s >= 1 else f"{text.significant(1000 * tb_per_s)} GB/s"


def _bandwidth_cell(level: Level, place: tuple, rows: pd.DataFrame) -> dict:
    """Return a cell of the map: the geometric mean of its shapes, or the reason why it has no number."""
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
