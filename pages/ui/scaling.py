"""The parts of the scaling page: what is drawn, of which shape, the lines, the roofs, the numbers."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui import cells, charts, filters, messages, scaling_charts, words
from pages.ui.data import ask_slowly
from pages.ui.reporting_charts import png
from results import derive, scaling
from results.precision import is_other
from results.queries import Filters
from results.scaling import QUANTITIES

COLUMNS = (
    *("implementation", "dtype", "seqlen_q", "latency_ms", "p20", "p80", "n", "statistic", "tflops"),
    *("percent_of_peak", "percent_of_measured", "time_per_token_us", "memory_per_token_kb", "tokens_per_joule"),
    *("joules_per_tflop", "status", "note", "source", "run_id"),
)
ROOFLINE = "roofline"


def choose_quantity(table: pd.DataFrame) -> str:
    """What is drawn, of what the slice has numbers of; the roofline where there are operations."""
    names = [name for name in QUANTITIES if table[name].notna().any()]
    names += [ROOFLINE] * bool(table["tflops"].notna().any() and table["intensity"].notna().any())
    return st.pills(
        "Quantity",
        names,
        default=names[0],
        required=True,
        key="quantity",
        bind="query-params",
        format_func=lambda name: "Roofline" if name == ROOFLINE else QUANTITIES[name].label,
        wrap=True,
    )


def one_shape(table: pd.DataFrame, chosen: Filters) -> tuple[pd.DataFrame, str]:
    """The rows of one head_dim and one batch and head count, and of that choice what the filters do not say."""
    table, head_dim = _one_of(
        table.assign(width=table["head_dim"].map(words.size)), "width", "scaling_head_dim", "head_dim"
    )
    table, shape = _one_of(table, "shape", "scaling_shape", "Batch and heads")
    return table, f"head_dim {head_dim}" + (f" · {shape}" if chosen.shape is None else "")


def headline(table: pd.DataFrame) -> None:
    """The most that anything reaches here, and what that is of the peak."""
    fair = table[[not is_other(name) for name in table["implementation"]]]  # TF32 and FP8 are bounded by other peaks
    fair = fair if fair["tflops"].notna().any() else table
    if not fair["tflops"].notna().any():
        return
    best = fair.loc[fair["tflops"].idxmax()]
    shares = [
        f"{'under 1' if best[name] < 1 else round(best[name])} % of the {words_of} peak"
        for name, words_of in (("percent_of_peak", "nominal"), ("percent_of_measured", "measured"))
        if not words.missing(best[name])
    ]
    share = f", {' and '.join(shares)}" if shares else ""
    st.markdown(
        f"#### {words.plain(best['implementation'])} reaches most: {words.significant(best['tflops'])} TFLOP/s in "
        f"{best['dtype']} at seqlen {words.size(best['seqlen_q'])}{share}"
    )


def facets(table: pd.DataFrame, quantity: str, chosen: Filters) -> None:
    """One chart a dtype."""
    palette = charts.colours(table["implementation"].unique().tolist())
    kinds = cells.dtypes(table)
    for start in range(0, len(kinds), 2):
        for column, dtype in zip(st.columns(2 if len(kinds) > 1 else 1), kinds[start : start + 2], strict=False):
            rows = table[table["dtype"].isna() if dtype is None else table["dtype"] == dtype]
            with column:
                st.markdown(f"**{dtype or 'dtype not said'}**")
                _draw(rows, quantity, palette, chosen, dtype)


def caption(chosen: Filters, quantity: str, kept: str, table: pd.DataFrame) -> None:
    """What is drawn, of which slice, by which statistic and formula."""
    about = "operations over least traffic" if quantity == ROOFLINE else QUANTITIES[quantity].about
    badges = messages.source_badges(sorted(set(table["source"])))
    statistic = words.statistic(table["statistic"])
    timing = words.TIMING_WORDS.get(chosen.timing or "", "")
    counted = messages.counted(int(table["latency_ms"].notna().sum()), "number")
    st.caption(
        f"{badges} {filters.words_of(chosen)} · {kept} · {timing} · {about} · {statistic} · {counted}. "
        f"{_notes(quantity)}"
    )


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The numbers of every line, with the power of seqlen that the last doubling followed."""
    places = ["implementation", "dtype"]
    powers = {
        place: scaling.growth(list(zip(rows["seqlen_q"], rows["latency_ms"], strict=True)))
        for place, rows in table.dropna(subset=["latency_ms"]).groupby(places, dropna=False)
    }
    shown = table[[*COLUMNS]].rename(columns={"seqlen_q": "seqlen"})
    powers_of = [powers.get(place) for place in zip(shown["implementation"], shown["dtype"], strict=True)]
    shown = shown.assign(growth=pd.Series(powers_of, index=shown.index, dtype=float))
    return shown.sort_values("latency_ms", key=pd.isna, kind="stable")  # what has no number stands last


def numbers_table(table: pd.DataFrame) -> None:
    """The same as a table."""
    shown = table.assign(
        status=[words.status(name) for name in table["status"]],
        note=table["note"].fillna(""),
        source=[words.sources(name) for name in table["source"]],
    )
    columns = {
        name: st.column_config.NumberColumn(f"{q.label} ({q.unit})", format="%.4g", help=q.about)
        for name, q in QUANTITIES.items()
        if name not in cells.NUMBERS
    }
    growth = st.column_config.NumberColumn(
        "grows as n^", format="%.2f", help="Of the latency, over the last two lengths"
    )
    st.dataframe(
        shown.dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Numbers of every line",
        column_config=cells.NUMBERS | columns | {"growth": growth},
    )


def _draw(rows: pd.DataFrame, quantity: str, palette: dict[str, str], chosen: Filters, dtype: str | None) -> None:
    name = f"{quantity}-{dtype or 'any'}"
    if quantity == ROOFLINE:
        if not (rows["tflops"] > 0).any():
            st.caption("No operations a second: the source does not say the whole shape.")
            return
        roofs = ask_slowly(scaling.roofs, chosen, dtype)
        figure = scaling_charts.roofline(rows, roofs, palette)
        alt = f"Roofline: TFLOP/s by operations a byte, {dtype or 'dtype not said'}"
        sources = list(dict.fromkeys(words.plain(roof.source) for roof in roofs))
        below = f"Roofs: {'; '.join(sources)}." if roofs else "No roof is known for this device and dtype."
    else:
        if not (rows[quantity] > 0).any():
            st.caption(
                f"No {QUANTITIES[quantity].label.lower()} here: the device's peak or the whole shape is not known."
            )
            return
        figure = scaling_charts.lines(rows, quantity, QUANTITIES[quantity], palette)
        alt = f"{QUANTITIES[quantity].label} by seqlen, one line an implementation, {dtype or 'dtype not said'}"
        below = None
    st.plotly_chart(figure, key=f"scaling_{name}", config=png(f"scaling-{name}"), alt=alt)
    if below:
        st.caption(below)


def _one_of(table: pd.DataFrame, column: str, key: str, label: str) -> tuple[pd.DataFrame, str]:
    """The rows of one value, which the page asks for where there are several; the one with most numbers first."""
    counts = table.groupby(column)["latency_ms"].count()
    names = sorted(counts.index, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    chosen = max(names, key=lambda name: (counts[name], names.index(name)))
    if len(names) > 1:
        chosen = st.pills(label, names, default=chosen, required=True, key=key, bind="query-params", wrap=True)
    return table[table[column] == chosen], chosen


def _notes(quantity: str) -> str:
    if quantity == "latency_ms":
        return "Bars: p20 to p80. Dotted: how a cost in proportion to n or n² would grow. The camera saves a PNG."
    if quantity in ("time_per_token_us", "memory_per_token_kb"):
        return "Dotted: constant, and in proportion to n. The camera saves a PNG."
    return f"Operations: {derive.FLOP_SOURCE}"
