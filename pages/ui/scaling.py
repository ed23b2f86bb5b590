"""Growth by seqlen: what is drawn, of which shape, the lines, the roofline, the numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text
from pages.ui.filters.select import rows_of_one
from pages.ui.shell.data import ask, ask_slowly
from results.implementations import facts_of
from results.query import scaling
from results.query.declared import declared
from results.query.scaling import QUANTITIES, Quantity, Roof
from results.slice import Filters, level_in

GUIDES = {
    "latency_ms": {"∝ n": 1, "∝ n²": 2},
    "time_per_token_us": {"constant": 0, "∝ n": 1},
    "memory_per_token_kb": {"constant": 0, "∝ n": 1},
}
COLUMNS = (
    *("implementation", "dtype", "seqlen_q", "latency_ms", "p20", "p80", "n", "statistic", "tflops"),
    *("percent_of_peak", "percent_of_measured", "time_per_token_us", "memory_per_token_kb", "tokens_per_joule"),
    *("joules_per_tflop", "status", "note", "source", "run_id"),
)
ROOFLINE = "roofline"
_PEAKS = {"percent_of_peak": "nominal peak", "percent_of_measured": "measured peak"}  # at 100 %


def choose_quantity(table: pd.DataFrame) -> str:
    """Ask what is drawn, of what the slice has numbers of; the roofline where there are operations."""
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
    """Return the rows of one head_dim and one batch and head count, and of that choice what the filters leave open."""
    table = table.assign(width=table["head_dim"].map(text.size))
    table, head_dim = rows_of_one(table, "width", "latency_ms", "scaling_head_dim", "head_dim")
    table, shape = rows_of_one(table, "shape", "latency_ms", "scaling_shape", "Batch and heads")
    return table, f"head_dim {head_dim}" + (f" · {shape}" if chosen.shape is None else "")


def headline(table: pd.DataFrame) -> None:
    """Name the highest rate that anything reaches here, and its share of the peak."""
    said = ask(declared)
    fair = table[
        [not facts_of(name, said).reduced for name in table["implementation"]]
    ]  # TF32 and FP8 are bounded by other peaks
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


def show_charts(table: pd.DataFrame, quantity: str, chosen: Filters) -> None:
    """Draw one chart a dtype."""
    palette = charts.colours(table["implementation"].unique().tolist())
    cells.facets(table, lambda rows, dtype: _draw(rows, quantity, palette, chosen, dtype))


def caption(chosen: Filters, quantity: str, kept: str, table: pd.DataFrame) -> None:
    """Say what is drawn, of which slice, by which statistic and formula."""
    about = "operations over least traffic" if quantity == ROOFLINE else QUANTITIES[quantity].about
    badges = messages.source_badges(sorted(set(table["source"])))
    statistic = text.statistic(table["statistic"])
    timing = text.TIMING_WORDS.get(chosen.timing or "", "")
    counted = messages.counted(int(table["latency_ms"].notna().sum()), "number")
    st.caption(
        f"{badges} {text.slice_words(chosen)} · {kept} · {timing} · {about} · {statistic} · {counted}. "
        f"{_notes(quantity, chosen)}"
    )


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of every line, with the power of seqlen that the last doubling followed."""
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
    """Draw the numbers of every line."""
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


def lines(rows: pd.DataFrame, column: str, quantity: Quantity, palette: dict[str, str]) -> go.Figure:
    """Return a quantity by seqlen, a line an implementation; latencies with p20 to p80."""
    drawn = rows[rows[column] > 0]
    found = drawn.to_dict("records")
    traces = charts.lines(
        found, column, palette, lambda row: _hover(row, column, quantity), of="implementation", by="seqlen_q"
    )
    if column == "latency_ms":
        spreads = (drawn[drawn["implementation"] == trace["name"]].sort_values("seqlen_q") for trace in traces)
        traces = [trace | {"error_y": _spread(own)} for trace, own in zip(traces, spreads, strict=True)]
    costs = column in GUIDES  # they span decades; rates and shares are compared by their height
    y_axis = charts.log_axis(drawn[column].min(), drawn[column].max()) if costs else {"rangemode": "tozero"}
    y_axis |= {"title": {"text": _title(quantity)}}
    more = [*_guides(drawn, column), *_peak(drawn, column)]
    return charts.by_size([*traces, *more], "seqlen", drawn["seqlen_q"], y_axis, camera=True)


def roofline(rows: pd.DataFrame, roofs: Sequence[Roof], palette: dict[str, str]) -> go.Figure:
    """Return TFLOP/s by operations a byte, a point a case, under the device's roofs."""
    figure = go.Figure()
    drawn = rows[(rows["tflops"] > 0) & (rows["intensity"] > 0)]
    low, high = drawn["intensity"].min() / 2, drawn["intensity"].max() * 2
    _draw_roofs(figure, roofs, low, high)
    for name, own in drawn.groupby("implementation", sort=True):
        figure.add_scatter(
            x=own["intensity"],
            y=own["tflops"],
            name=name,
            mode="markers",
            marker={"symbol": charts.symbol(name), "size": 8, "color": palette[name], "opacity": 0.85},
            customdata=[
                f"{row['implementation']}<br>seqlen {text.size(row['seqlen_q'])}, head_dim {row['head_dim']:.0f}<br>"
                f"{row['tflops']:.1f} TFLOP/s, {row['gb_per_s']:.0f} GB/s at least"
                for row in own.to_dict("records")
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_xaxes(title="operations a byte (least traffic)", **charts.log_axis(low, high))
    figure.update_yaxes(
        title="TFLOP/s", **charts.log_axis(drawn["tflops"].min(), _highest(roofs, high, drawn["tflops"].max()))
    )
    figure.update_layout(
        height=520, margin=charts.CAMERA_MARGIN, legend={"orientation": "h", "y": -0.24}, hovermode="closest"
    )
    return figure


def _draw_roofs(figure: go.Figure, roofs: Sequence[Roof], low: float, high: float) -> None:
    """Add each roof as a line over these operations a byte; the legend names a kind once."""
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
                "color": charts.EMPTY_COLOUR,
                "width": 1 if kind.endswith(("TF32", "FP8")) else 2,
                "dash": "dash" if measured else "solid",
            },
            hovertemplate=f"{roof.name}: {_roof_words(roof)}<extra></extra>",
        )


def _draw(rows: pd.DataFrame, quantity: str, palette: dict[str, str], chosen: Filters, dtype: str | None) -> None:
    name = f"{quantity}-{dtype or 'any'}"
    if quantity == ROOFLINE:
        if not (rows["tflops"] > 0).any():
            st.caption("No operations a second: the source does not say the whole shape.")
            return
        roofs = ask_slowly(scaling.roofs, chosen, dtype)
        figure = roofline(rows, roofs, palette)
        alt = f"Roofline: TFLOP/s by operations a byte, {cells.dtype_name(dtype)}"
        sources = list(dict.fromkeys(text.plain(roof.source) for roof in roofs))
        below = f"Roofs: {'; '.join(sources)}." if roofs else "No roof is known for this device and dtype."
    else:
        if not (rows[quantity] > 0).any():
            st.caption(
                f"No {QUANTITIES[quantity].label.lower()} here: the device's peak or the whole shape is not known."
            )
            return
        figure = lines(rows, quantity, QUANTITIES[quantity], palette)
        alt = f"{QUANTITIES[quantity].label} by seqlen, one line an implementation, {cells.dtype_name(dtype)}"
        below = None
    st.plotly_chart(figure, key=f"scaling_{name}", config=charts.camera(f"scaling-{name}"), alt=alt)
    if below:
        st.caption(below)


def _spread(rows: pd.DataFrame) -> dict:
    up, down = (rows["p80"] - rows["latency_ms"]).clip(lower=0), (rows["latency_ms"] - rows["p20"]).clip(lower=0)
    return {"type": "data", "array": up.fillna(0), "arrayminus": down.fillna(0), "thickness": 1, "width": 3}


def _hover(row: dict, column: str, quantity: Quantity) -> str:
    lines = [row["implementation"], f"seqlen {int(row['seqlen_q'])}", f"{row[column]:.4g} {quantity.unit}"]
    if column == "latency_ms" and not text.missing(row["p20"]):
        lines.append(f"p20 to p80: {row['p20']:.4g} to {row['p80']:.4g} ms")
    lines.append(f"n = {'not said' if text.missing(row['n']) else int(row['n'])}, {text.sources(row['source'])}")
    return "<br>".join(lines)


def _guides(drawn: pd.DataFrame, column: str) -> list[dict]:
    """Return how a cost would grow, as dotted lines from the cheapest point of the shortest sequence."""
    if drawn["seqlen_q"].nunique() < 2:
        return []
    start, end = drawn["seqlen_q"].min(), drawn["seqlen_q"].max()
    base, top = drawn[column].min(), drawn[column].max()
    found = []
    for name, power in GUIDES.get(column, {}).items():
        last = min(end, start * (top / base) ** (1 / power)) if power else end
        guide = {"type": "scatter", "x": [start, last], "y": [base, base * (last / start) ** power]}
        guide |= {"mode": "lines+text", "text": ["", name], "textposition": "top left", "showlegend": False}
        found.append(guide | {"line": {"dash": "dot", "width": 1, "color": charts.EMPTY_COLOUR}, "hoverinfo": "skip"})
    return found


def _peak(drawn: pd.DataFrame, column: str) -> list[dict]:
    """Return the line that a share of a peak is a share of."""
    if column not in _PEAKS:
        return []
    ends = [drawn["seqlen_q"].min(), drawn["seqlen_q"].max()]
    line = {"type": "scatter", "x": ends, "y": [100, 100], "mode": "lines", "name": _PEAKS[column]}
    return [line | {"line": {"dash": "dash", "width": 1, "color": charts.EMPTY_COLOUR}, "hoverinfo": "skip"}]


def _highest(roofs: Sequence[Roof], intensity: float, reached: float) -> float:
    return max([reached, *(bound for roof in roofs if (bound := roof.at(intensity)))])


def _title(quantity: Quantity) -> str:
    return quantity.label if quantity.unit in ("", quantity.label, "%") else f"{quantity.label} ({quantity.unit})"


def _roof_words(roof: Roof) -> str:
    parts = [f"{roof.tflops:.0f} TFLOP/s"] if roof.tflops else []
    return ", ".join(parts + ([f"{roof.gb_per_s:.0f} GB/s"] if roof.gb_per_s else []))


def _notes(quantity: str, chosen: Filters) -> str:
    if quantity == "latency_ms":
        return "Bars: p20 to p80. Dotted: how a cost in proportion to n or n² would grow. The camera saves a PNG."
    if quantity in ("time_per_token_us", "memory_per_token_kb"):
        return "Dotted: constant, and in proportion to n. The camera saves a PNG."
    return f"Operations: {level_in(chosen).flops_source}"
