"""The parts of the scaling page: what is drawn, of which shape, the lines, the roofs, the numbers.

Lines over seqlen and the roofline; both logarithmic, both with a camera.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text
from pages.ui.draw.charts import EMPTY_COLOUR, SYMBOLS
from pages.ui.filters import filters
from pages.ui.reports.tables import MARGIN, log_axis, png
from pages.ui.shell.data import ask_slowly
from results import derive
from results.precision import is_other
from results.query import scaling
from results.query.pages import Filters
from results.query.scaling import QUANTITIES, Quantity, Roof

GUIDES = {
    "latency_ms": {"∝ n": 1, "∝ n²": 2},
    "time_per_token_us": {"constant": 0, "∝ n": 1},
    "memory_per_token_kb": {"constant": 0, "∝ n": 1},
}
LEGEND = {"orientation": "h", "y": -0.2}


def lines(rows: pd.DataFrame, column: str, quantity: Quantity, palette: dict[str, str]) -> go.Figure:
    """A quantity by seqlen, a line an implementation; latencies with p20 to p80."""
    figure = go.Figure()
    drawn = rows[rows[column] > 0]
    for at, (name, own) in enumerate(drawn.groupby("implementation", sort=True)):
        own = own.sort_values("seqlen_q")
        figure.add_scatter(
            x=own["seqlen_q"],
            y=own[column],
            name=name,
            mode="lines+markers",
            line={"color": palette[name], "width": 2},
            marker={"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 9, "color": palette[name]},
            error_y=_spread(own) if column == "latency_ms" else None,
            customdata=[_hover(row, column, quantity) for row in own.to_dict("records")],
            hovertemplate="%{customdata}<extra></extra>",
        )
    _guides(figure, drawn, column)
    ticks = sorted(drawn["seqlen_q"].astype(int).unique())
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[text.size(tick) for tick in ticks], title="seqlen")
    figure.update_yaxes(title=_title(quantity), **log_axis(drawn[column].min(), drawn[column].max()))
    figure.update_layout(height=440, margin=MARGIN, legend=LEGEND, hovermode="closest")
    return figure


def roofline(rows: pd.DataFrame, roofs: Sequence[Roof], palette: dict[str, str]) -> go.Figure:
    """TFLOP/s by operations a byte, a point a case, under the device's roofs."""
    figure = go.Figure()
    drawn = rows[(rows["tflops"] > 0) & (rows["intensity"] > 0)]
    low, high = drawn["intensity"].min() / 2, drawn["intensity"].max() * 2
    _draw_roofs(figure, roofs, low, high)
    for at, (name, own) in enumerate(drawn.groupby("implementation", sort=True)):
        figure.add_scatter(
            x=own["intensity"],
            y=own["tflops"],
            name=name,
            mode="markers",
            marker={"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 8, "color": palette[name], "opacity": 0.85},
            customdata=[
                f"{row['implementation']}<br>seqlen {text.size(row['seqlen_q'])}, head_dim {row['head_dim']:.0f}<br>"
                f"{row['tflops']:.1f} TFLOP/s, {row['gb_per_s']:.0f} GB/s at least"
                for row in own.to_dict("records")
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_xaxes(title="operations a byte (least traffic)", **log_axis(low, high))
    figure.update_yaxes(
        title="TFLOP/s", **log_axis(drawn["tflops"].min(), _highest(roofs, high, drawn["tflops"].max()))
    )
    figure.update_layout(height=520, margin=MARGIN, legend={"orientation": "h", "y": -0.24}, hovermode="closest")
    return figure


def _draw_roofs(figure: go.Figure, roofs: Sequence[Roof], low: float, high: float) -> None:
    """Each roof as a line over these operations a byte; the legend names a kind once."""
    kinds = [roof.name.partition(",")[0] for roof in roofs]  # of measured ones there can be one a run
    for at, (kind, roof) in enumerate(zip(kinds, roofs, strict=True)):
        ridge = 1000 * roof.tflops / roof.gb_per_s if roof.tflops and roof.gb_per_s else None
        xs = [low, *([ridge] if ridge and low < ridge < high else []), high]
        measured = kind.startswith("measured")
        figure.add_scatter(
            x=xs,
            y=[roof.at(x) for x in xs],
            mode="lines",
            name=f"{kind} roof",
            legendgroup=kind,
            showlegend=kind not in kinds[:at],
            line={
                "color": EMPTY_COLOUR,
                "width": 1 if kind.endswith(("TF32", "FP8")) else 2,
                "dash": "dash" if measured else "solid",
            },
            hovertemplate=f"{roof.name}: {_roof_words(roof)}<extra></extra>",
        )


def _spread(rows: pd.DataFrame) -> dict:
    up, down = (rows["p80"] - rows["latency_ms"]).clip(lower=0), (rows["latency_ms"] - rows["p20"]).clip(lower=0)
    return {"type": "data", "array": up.fillna(0), "arrayminus": down.fillna(0), "thickness": 1, "width": 3}


def _hover(row: dict, column: str, quantity: Quantity) -> str:
    lines = [row["implementation"], f"seqlen {int(row['seqlen_q'])}", f"{row[column]:.4g} {quantity.unit}"]
    if column == "latency_ms" and not text.missing(row["p20"]):
        lines.append(f"p20 to p80: {row['p20']:.4g} to {row['p80']:.4g} ms")
    lines.append(f"n = {'not said' if text.missing(row['n']) else int(row['n'])}, {text.sources(row['source'])}")
    return "<br>".join(lines)


def _guides(figure: go.Figure, drawn: pd.DataFrame, column: str) -> None:
    """How a cost would grow: from the cheapest point of the shortest sequence."""
    if drawn["seqlen_q"].nunique() < 2:
        return
    start, end = drawn["seqlen_q"].min(), drawn["seqlen_q"].max()
    base, top = drawn[column].min(), drawn[column].max()
    for name, power in GUIDES.get(column, {}).items():
        last = min(end, start * (top / base) ** (1 / power)) if power else end
        figure.add_scatter(
            x=[start, last],
            y=[base, base * (last / start) ** power],
            mode="lines+text",
            text=["", name],
            textposition="top left",
            line={"dash": "dot", "width": 1, "color": EMPTY_COLOUR},
            showlegend=False,
            hoverinfo="skip",
        )


def _highest(roofs: Sequence[Roof], intensity: float, reached: float) -> float:
    return max([reached, *(bound for roof in roofs if (bound := roof.at(intensity)))])


def _title(quantity: Quantity) -> str:
    return quantity.label if quantity.unit in ("", quantity.label, "%") else f"{quantity.label} ({quantity.unit})"


def _roof_words(roof: Roof) -> str:
    parts = [f"{roof.tflops:.0f} TFLOP/s"] if roof.tflops else []
    return ", ".join(parts + ([f"{roof.gb_per_s:.0f} GB/s"] if roof.gb_per_s else []))


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
        table.assign(width=table["head_dim"].map(text.size)), "width", "scaling_head_dim", "head_dim"
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
        if not text.missing(best[name])
    ]
    share = f", {' and '.join(shares)}" if shares else ""
    st.markdown(
        f"#### {text.plain(best['implementation'])} reaches most: {text.significant(best['tflops'])} TFLOP/s in "
        f"{best['dtype']} at seqlen {text.size(best['seqlen_q'])}{share}"
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
    statistic = text.statistic(table["statistic"])
    timing = text.TIMING_WORDS.get(chosen.timing or "", "")
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
        status=[text.status(name) for name in table["status"]],
        note=table["note"].fillna(""),
        source=[text.sources(name) for name in table["source"]],
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
        figure = roofline(rows, roofs, palette)
        alt = f"Roofline: TFLOP/s by operations a byte, {dtype or 'dtype not said'}"
        sources = list(dict.fromkeys(text.plain(roof.source) for roof in roofs))
        below = f"Roofs: {'; '.join(sources)}." if roofs else "No roof is known for this device and dtype."
    else:
        if not (rows[quantity] > 0).any():
            st.caption(
                f"No {QUANTITIES[quantity].label.lower()} here: the device's peak or the whole shape is not known."
            )
            return
        figure = lines(rows, quantity, QUANTITIES[quantity], palette)
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
