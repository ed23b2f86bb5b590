"""Decoding: bandwidth by context and batch, latency by context, and the costs of cache formats."""

import math
from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui import frontier
from pages.ui.draw import cells, charts, colours, maps, messages, tables, text, titles
from pages.ui.filters import chips, select
from pages.ui.overview import ranking as ranked
from pages.ui.shell.data import ask, ask_slowly
from results.derive import geometric_mean
from results.levels import level_of
from results.query import bandwidth, cache_costs, pages, speedups
from results.slice import Filters

LEVEL = level_of("decode")
COLUMNS = text.WORDS["column_orders"]["decode"]
_AT_COPY = "at copy bandwidth"
_MORE = messages.SAID["cache_costs"]["help"]
_KINDS = text.WORDS["cache_kinds"]
_COLUMNS = tables.declared("cache_costs")


def show() -> None:
    """Draw the winner of each cell, the bandwidth, latency by context, costs of cache formats, and every number."""
    chosen = chips.current()
    if chosen.gpu is None:
        messages.nothing_measured("decode")
        return
    ranking = ask(speedups.ranked, chosen)
    if not ranking:
        messages.nothing_here(chosen, "decode latencies")
        return
    won, table = ask_slowly(ranked.judged, chosen), ask_slowly(bandwidth.rows, chosen)
    ranked.headline(ranking, won, chosen)
    bandwidth_headline(table)
    st.subheader("Fastest implementation by context and batch")
    ranked.winner_map(ranking, won, chosen)
    st.subheader("Achieved bandwidth")
    bandwidth_map(table)
    st.subheader("Latency by context")
    latency_chart(table, colours.palette([row["implementation"] for row in ranking]), chosen)

    def title(what: str, rows: pd.DataFrame) -> titles.ChartTitle:
        return titles.of_slice(what, chosen, rows["run_id"].unique(), more=rows["shape"].unique())

    frontier.section(table[table["seqlen_q"] == 1], "attention of one layer", title)
    cache_section(ask_slowly(cache_costs.rows, chosen), chosen)
    st.subheader("Every implementation")
    ranked.ranking_table(ranking, ask(pages.peak_memory, chosen), chosen)
    messages.folded("Every number", "every_number", lambda: numbers_table(table, chosen))
    messages.download_latencies(chosen)
    messages.provenance(chosen)


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


def bandwidth_map(table: pd.DataFrame) -> None:
    """Ask for an implementation; draw the TB/s of its cells, colored by their share of the copy bandwidth."""
    known = table[table["tb_per_s"].notna()]
    names = sorted(known["implementation"].unique())
    if not names:
        st.caption("No bandwidth here: the source does not state the whole shape, or nothing has a time.")
        return
    name = select.pills("Implementation", "show", names, widest_and_fastest(known))
    own = table[table["implementation"] == name]
    scale = colours.share_scale() if own["percent_of_copy"].notna().any() else None
    look = maps.Look(lambda row: colours.share_colour(row["share"]), lambda row: rate_words(row["shown"]), scale=scale)
    alt = f"Bandwidth of {name} by {LEVEL.columns.label} and {LEVEL.rows.label}"
    maps.show(LEVEL, cells.mean_cells(LEVEL, own, _bandwidth), look, "bandwidth_map", alt)
    copy = sorted({rate_words(rate / 1000) for rate in own["measured_gbs"].dropna()})
    rates = f" The color is its share of the bandwidth of a large copy, {', '.join(copy)}." if copy else ""
    above = "Above 100 %: a copy writes as much as it reads, and decoding hardly writes. " if copy else ""
    st.caption(f"The least traffic of a call over its latency.{rates}", help=above + LEVEL.bytes_source)


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
    more = [f"batch {batch}", *[shape] * (chosen.shape is None)]

    def chart(rows: pd.DataFrame, dtype: str | None) -> charts.Chart:
        return latency_lines(rows, palette, (min(shown), max(shown)))

    def title(rows: pd.DataFrame, dtype: str) -> titles.ChartTitle:
        return titles.of_slice(f"Decode latency by context, {dtype}", chosen, rows["run_id"].unique(), more=more)

    alt = f"Latency by context at batch {batch}, one line for each implementation"
    charts.show_by_dtype(timed, chart, title, "decode_latency", alt)
    if timed["copy_ms"].notna().any():
        st.caption("Dashed: the time of the least traffic at the bandwidth of a large copy.")


def latency_lines(rows: pd.DataFrame, palette: dict[str, str], limits: tuple[float, float]) -> charts.Chart:
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
    config = cells.NUMBERS | cells.axis_columns(LEVEL) | tables.declared("named")
    order = ["implementation", *(name for name in COLUMNS if name != "implementation")]
    tables.grid(shown, "Latency and bandwidth of every shape", config, column_order=order)
    title = titles.of_slice("Decode latency and bandwidth", chosen, table["run_id"].unique())
    messages.download_slice("Download numbers", title, chosen, lambda: table[[*COLUMNS]], "decode_csv")


def rate_words(tb_per_s: float) -> str:
    """Write a bandwidth in TB/s, below one in GB/s."""
    return f"{tb_per_s:.2f} TB/s" if tb_per_s >= 1 else f"{text.significant(1000 * tb_per_s)} GB/s"


def _bandwidth(rows: pd.DataFrame) -> tuple[dict[str, object], list[str]]:
    """Return the mean bandwidth of some shapes with its words, or the reason why there is none."""
    rate, share = (geometric_mean(rows[name].dropna()) for name in ("tb_per_s", "percent_of_copy"))
    if rate is None:
        status = rows["status"].iloc[0]
        return {"shown": None, "status": status, "share": 0.0}, [text.status(status)]
    words = [text.ms(geometric_mean(rows["latency_ms"].dropna())), rate_words(rate)]
    return {"shown": rate, "share": share or 0.0}, words + [f"{share:.0f} % of the copy bandwidth"] * bool(share)


def _hover(row: dict) -> str:
    rate = "" if text.missing(row["tb_per_s"]) else f", {rate_words(row['tb_per_s'])}"
    share = "" if text.missing(row["percent_of_copy"]) else f" ({row['percent_of_copy']:.0f} % of copy)"
    return f"{text.ms(row['latency_ms'])}{rate}{share}"


def cache_section(table: pd.DataFrame, chosen: Filters) -> None:
    """Draw a table of every form, then the map of one form and implementation; draw nothing without such cases."""
    if table.empty:
        return
    st.subheader("Cost of paging, ragged lengths, an FP8 cache and several query tokens")
    name = leading(table)
    st.markdown(f"Time of {text.plain(name)} over its time for the plain cache of as many tokens (geometric means):")
    own = table[table["implementation"] == name]
    kinds = own["form"].map(lambda form: _order(form)[0])
    tables.show_facts(_fact(kind, own[kinds == kind]) for kind in sorted(kinds.unique()))
    forms = cache_costs.summary(table)
    forms = forms.iloc[sorted(range(len(forms)), key=lambda at: _order(forms["form"].iloc[at]))]
    alt = "Time over that of the plain cache, by form, shape and implementation"
    tables.grid(forms.dropna(axis="columns", how="all"), alt, _COLUMNS)
    form = select.pills("Form", "form", sorted(table["form"].unique(), key=_order))
    rows = table[table["form"] == form]
    name = select.pills("Implementation", "costs_of", sorted(rows["implementation"].unique()), leading(rows))
    rows = rows[rows["implementation"] == name]
    shapes = sorted(rows["beside"].unique(), key=lambda shape: (len(shape), shape))
    rows = rows[rows["beside"] == select.one_of_several("Shape", "costs_beside", shapes)]
    st.markdown(f"**{text.plain(name)}: {text.plain(form)} over the same tokens without it**")
    drawn = cells.mean_cells(LEVEL, rows, _cost)
    found = colours.speedup_scale(1 / row["ratio"] for row in drawn)  # the ratios are inverse speedups
    scale = {"colours": list(found.colours), "ticks": found.ticks[::-1]}
    look = maps.Look(lambda row: found.colour(1 / row["ratio"]), lambda row: text.ratio(row["ratio"]), scale=scale)
    maps.show(LEVEL, drawn, look, "cost_map", f"Time of {form} over plain")
    messages.say("cache_costs")
    title = titles.of_slice("Cost of the cache's form", chosen, table["run_id"].unique())
    messages.download_slice("Download costs", title, chosen, lambda: table, "costs_csv")


def _fact(kind: str, rows: pd.DataFrame) -> tables.Fact:
    """Return the cost of a kind of form: its factor, and below it the range or the errors of a quantized cache."""
    numbers = sorted({_order(form)[1] for form in rows["form"]} - {0})
    of = f" {'–'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))}" if numbers else ""
    below = f"range {text.span(rows['ratio'].min(), rows['ratio'].max())}"
    errors = rows[["plain_error", "error_original"]].median()
    if not math.isnan(errors["error_original"]):
        plain = "" if math.isnan(errors["plain_error"]) else f", {errors['plain_error']:.1e} without"
        below = f"error {errors['error_original']:.1e}{plain}"
    return tables.Fact(f"{_KINDS.get(kind, kind)}{of}", text.ratio(geometric_mean(rows["ratio"])), below, _MORE)


def leading(table: pd.DataFrame) -> str:
    """Return the implementation with most rows; of several with equally many, the fastest."""
    found = {name: (len(rows), -geometric_mean(rows["latency_ms"])) for name, rows in table.groupby("implementation")}
    return max(found, key=found.get)


def _order(form: str) -> tuple[str, int]:
    """Sort forms by kind, and pages and query tokens by their number."""
    numbers = [word for word in form.split() if word.isdigit()]
    kind = " ".join(word for word in form.split() if not word.isdigit())
    return kind, int(numbers[0]) if numbers else 0


def _cost(rows: pd.DataFrame) -> tuple[dict[str, object], list[str]]:
    """Return the mean ratio of some shapes, with its times and errors in words."""
    ratio = geometric_mean(rows["ratio"])
    words = [f"{text.ms(geometric_mean(rows['latency_ms']))} over {text.ms(geometric_mean(rows['plain_ms']))}"]
    for name, about in (("error", "as stored"), ("error_original", "on the original cache")):
        error = rows[name].median()
        words += [] if error is None or math.isnan(error) else [f"error {about}: {error:.2e}"]
    return {"ratio": ratio, "shown": ratio}, words
