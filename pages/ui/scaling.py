"""Growth by seqlen: what is drawn, of which shape, the lines or bars, the roofline, the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text, titles
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters.select import rows_of_one
from pages.ui.shell.data import ask, ask_slowly
from results.implementations import facts_of
from results.query import scaling
from results.query.declared import declared
from results.query.scaling import ENERGIES, QUANTITIES, Quantity, Roof
from results.slice import Filters, level_in

RATES = ("tflops", "percent_of_peak", "percent_of_measured")  # compared by their height, from 0
COSTS = ("latency_ms", "time_per_token_us", "memory_per_token_kb")  # these span decades
COLUMNS = (
    *("implementation", "dtype", "seqlen_q", "latency_ms", "p20", "p80", "n", "statistic", "tflops"),
    *("percent_of_peak", "percent_of_measured", "time_per_token_us", "memory_per_token_kb", "tokens_per_joule"),
    *("joules_per_tflop", "status", "note", "source", "run_id"),
)
ROOFLINE = "roofline"
_FIRST_HEAD_DIM = "128"  # of most models
_SHOWN = ("implementation", "dtype", "seqlen", "latency_ms", "p20", "p80", "tflops", "percent_of_peak")
_AFTER = ("growth", "status", "note", "source", "run_id")
_PEAKS = {"percent_of_peak": "data-sheet peak", "percent_of_measured": "measured peak"}  # at 100 %
_FAR = 4  # times what is reached: a peak beyond that would press the lines flat, and is not drawn
_ABOVE = "Above 100 %: faster than the matrix product that was measured, at the clock of that moment. "


@dataclass(frozen=True)
class ScalingView:
    """What the page draws: a quantity of one shape, and how."""

    chosen: Filters
    quantity: str
    kept: str  # head_dim, batch and heads, in words
    bars: bool = False

    @property
    def words(self) -> Quantity:
        """Return what is known of the quantity."""
        return QUANTITIES[self.quantity]

    def title(self, table: pd.DataFrame, dtype: str | None = None) -> ChartTitle:
        """Return the title of a chart, or of the file, of these rows."""
        what = "Roofline" if self.quantity == ROOFLINE else f"{self.words.label} by seqlen"
        named = what if dtype is None else f"{what}, {dtype}"
        return titles.of_slice(named, self.chosen, table["run_id"].unique(), more=[self.kept])


def choose_quantity(table: pd.DataFrame, energy: pd.DataFrame) -> str:
    """Ask what is drawn, of what the slice has numbers of; the roofline where the operations are known."""
    names = [name for name in QUANTITIES if (energy if name in ENERGIES else table)[name].notna().any()]
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


def choose(table: pd.DataFrame, quantity: str, chosen: Filters) -> tuple[pd.DataFrame, ScalingView]:
    """Ask for one head_dim, one batch and head count, and lines or bars; return the rows and what is drawn of them."""
    if quantity == ROOFLINE:
        return table, ScalingView(chosen, quantity, "all shapes of the slice")
    whole = table.assign(width=table["head_dim"].map(text.size))
    with st.container(horizontal=True, gap="large"):
        rows, head_dim = rows_of_one(whole, "width", quantity, "scaling_head_dim", "head_dim", first=_FIRST_HEAD_DIM)
        shapes = st.container(width="content")
        bars = quantity in RATES and _asks_for_bars()
    _offer_others(whole, quantity, head_dim)
    with shapes:
        rows, shape = rows_of_one(rows, "shape", quantity, "scaling_shape", "Batch and heads")
    kept = f"head_dim {head_dim}" + (f" · {shape}" if chosen.shape is None else "")
    return rows, ScalingView(chosen, quantity, kept, bars)


def _asks_for_bars() -> bool:
    drawn = st.segmented_control(
        "Draw",
        ["Lines", "Bars"],
        default="Lines",
        required=True,
        key="drawn_as",
        bind="query-params",
        width="content",
    )
    return drawn == "Bars"


def _offer_others(table: pd.DataFrame, quantity: str, head_dim: str) -> None:
    """Say at which head_dim a quantity was measured if not at the chosen one, and offer to show it."""
    known = table[table[quantity].notna()]
    there = sorted(known["width"].unique(), key=lambda width: (len(width), width))
    if head_dim in there or not there:
        return
    label = QUANTITIES[quantity].label
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"{label} is known at head_dim {', '.join(there)} only.", width="content")
        st.button(f"Show head_dim {there[0]}", key="show_head_dim", on_click=_take_head_dim, args=(there[0],))


def _take_head_dim(width: str) -> None:
    st.session_state["scaling_head_dim"] = width


def headline(table: pd.DataFrame) -> None:
    """Name the highest rate that anything reaches in its dtype's own precision, and its share of the peak."""
    said = ask(declared)
    reduced = table["implementation"].map(lambda name: facts_of(name, said).reduced).astype(bool)
    fair = table[~reduced]  # TF32 and FP8 are bounded by other peaks
    fair = fair if fair["tflops"].notna().any() else table
    if not fair["tflops"].notna().any():
        return
    best = fair.loc[fair["tflops"].idxmax()]
    shares = [
        f"{'under 1' if best[name] < 1 else round(best[name])} % of the {peak}"
        for name, peak in _PEAKS.items()
        if not text.missing(best[name])
    ]
    st.markdown(
        f"#### Highest at {best['dtype']} precision: {text.plain(best['implementation'])}, "
        f"{text.significant(best['tflops'])} TFLOP/s at seqlen {text.size(best['seqlen_q'])}"
        f"{' (' + ', '.join(shares) + ')' if shares else ''}"
    )
    if not text.missing(best["percent_of_measured"]) and best["percent_of_measured"] > 100:
        st.caption(_ABOVE)


def show_charts(table: pd.DataFrame, view: ScalingView) -> None:
    """Draw one chart a dtype, all on the same axis."""
    palette = charts.colours(table["implementation"].unique().tolist())
    if view.quantity == ROOFLINE:
        cells.facets(table, partial(_show_roofline, palette=palette, view=view))
        return
    drawn = table[table[view.quantity] > 0]
    if drawn.empty:
        st.caption(f"No number of this kind at {view.kept}: {view.words.label}.")
        return
    if view.bars:
        for dtype in cells.dtypes(drawn):
            rows = cells.of_dtype(drawn, dtype)
            figure = bars(rows, view, palette, _rate_axis(drawn, view))
            alt = f"{view.words.label} by seqlen, a bar an implementation, {cells.dtype_name(dtype)}"
            title = view.title(rows, cells.dtype_name(dtype))
            charts.show(figure, title, key=f"scaling_bars_{view.quantity}_{dtype}", alt=alt)
        return
    cells.facets(drawn, partial(_show_lines, palette=palette, view=view, whole=drawn))


def caption(view: ScalingView, table: pd.DataFrame) -> None:
    """Say what is drawn and how often it was taken; what the numbers count is in the help."""
    about = "FLOP/s over the least traffic" if view.quantity == ROOFLINE else view.words.about
    badges = messages.source_badges(sorted(set(table["source"])))
    timing = text.TIMING_WORDS.get(view.chosen.timing or "", "")
    counted = messages.counted(int(table["latency_ms"].notna().sum()), "number")
    counts = view.quantity in RATES or view.quantity in (ROOFLINE, "joules_per_tflop")
    statistic = text.statistic(table["statistic"], table["n"])
    st.caption(
        f"{badges} {about[:1].upper()}{about[1:]} · {timing} · {statistic} · {counted}. {_notes(view, table)}",
        help=level_in(view.chosen).flops_source if counts else None,
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


def numbers_table(table: pd.DataFrame, quantity: str) -> None:
    """Draw the numbers of every line that the page is about; the file has all."""
    shown = table.assign(
        status=[text.status(name) for name in table["status"]],
        source=[text.sources(name) for name in table["source"]],
    )
    wanted = [*_SHOWN, *([quantity] if quantity in QUANTITIES and quantity not in _SHOWN else []), *_AFTER]
    columns = {
        name: st.column_config.NumberColumn(_title(q), format="%.3g", help=q.about) for name, q in QUANTITIES.items()
    }
    columns |= {name: st.column_config.NumberColumn(f"{name} (ms)", format="%.3g") for name in ("p20", "p80")}
    columns["implementation"] = st.column_config.TextColumn("implementation", pinned=True)
    columns["run_id"] = st.column_config.TextColumn("run")
    columns["growth"] = st.column_config.NumberColumn(
        "growth exponent", format="%.2f", help="Latency grew as seqlen to this power over the last two lengths"
    )
    st.dataframe(
        shown[wanted].dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Numbers of every line",
        column_config=cells.NUMBERS | columns,
        placeholder="–",
    )


def lines(
    rows: pd.DataFrame,
    view: ScalingView,
    palette: dict[str, str],
    y_axis: dict,
    roofs: Sequence[Roof] = (),
) -> go.Figure:
    """Return a quantity by seqlen, a line an implementation; latencies with p20 to p80, rates under their peaks."""
    column = view.quantity
    traces = charts.lines(
        rows.to_dict("records"), column, palette, lambda row: _hover(row, view), of="implementation", by="seqlen_q"
    )
    if column == "latency_ms":
        spreads = (rows[rows["implementation"] == trace["name"]].sort_values("seqlen_q") for trace in traces)
        traces = [trace | {"error_y": _spread(own)} for trace, own in zip(traces, spreads, strict=True)]
    traces += [*_guides(rows, column), *_peaks(rows, column, roofs)]
    return charts.by_size(traces, "seqlen", rows["seqlen_q"], y_axis, beside=palette)


def bars(rows: pd.DataFrame, view: ScalingView, palette: dict[str, str], y_axis: dict) -> go.Figure:
    """Return a rate as a group of bars a seqlen, each with its number."""
    found = [
        charts.BarGroup(row["implementation"], text.size(row["seqlen_q"]), row[view.quantity], _hover(row, view))
        for row in rows.sort_values("seqlen_q").to_dict("records")
    ]
    return charts.grouped_bars(found, palette, "seqlen", y_axis)


def roofline(rows: pd.DataFrame, roofs: Sequence[Roof], palette: dict[str, str]) -> go.Figure:
    """Return TFLOP/s by arithmetic intensity, a point a shape, under the device's roofs; both logarithmic."""
    figure = go.Figure()
    drawn = rows[(rows["tflops"] > 0) & (rows["intensity"] > 0)]
    low, high = drawn["intensity"].min() / 2, drawn["intensity"].max() * 2
    _draw_roofs(figure, roofs, low, high)
    for name in charts.ordered(drawn["implementation"]):
        own = drawn[drawn["implementation"] == name]
        figure.add_scatter(
            x=own["intensity"],
            y=own["tflops"],
            name=name,
            mode="markers",
            marker={"symbol": charts.symbol(name), "size": 8, "color": palette[name], "opacity": 0.85},
            customdata=[
                f"{row['implementation']}<br>seqlen {text.size(row['seqlen_q'])}, head_dim {row['head_dim']:.0f}<br>"
                f"{text.significant(row['tflops'])} TFLOP/s, at least {text.significant(row['gb_per_s'])} GB/s"
                for row in own.to_dict("records")
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_xaxes(title="Arithmetic intensity (FLOP/byte, minimum traffic)", **charts.log_axis(low, high))
    figure.update_yaxes(
        title="TFLOP/s", **charts.log_axis(drawn["tflops"].min(), _highest(roofs, high, drawn["tflops"].max()))
    )
    figure.update_layout(height=520, margin=charts.CAMERA_MARGIN, legend=charts.LEGEND, hovermode="closest")
    return figure


def _draw_roofs(figure: go.Figure, roofs: Sequence[Roof], low: float, high: float) -> None:
    """Add each roof as a line over these intensities, in FLOP/byte; the legend names a kind once."""
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


def _show_lines(
    rows: pd.DataFrame, dtype: str | None, palette: dict[str, str], view: ScalingView, whole: pd.DataFrame
) -> None:
    roofs = _own_roofs(ask(scaling.roofs, view.chosen, dtype), rows) if view.quantity == "tflops" else []
    figure = lines(rows, view, palette, _rate_axis(whole, view), roofs)
    alt = f"{view.words.label} by seqlen, one line an implementation, {cells.dtype_name(dtype)}"
    key = f"scaling_{view.quantity}_{dtype}"
    charts.show(figure, view.title(rows, cells.dtype_name(dtype)), key=key, alt=alt)


def _show_roofline(rows: pd.DataFrame, dtype: str | None, palette: dict[str, str], view: ScalingView) -> None:
    if not (rows["tflops"] > 0).any():
        st.caption(f"No FLOP/s in {cells.dtype_name(dtype)}: the source does not say the whole shape.")
        return
    roofs = ask_slowly(scaling.roofs, view.chosen, dtype)
    figure = roofline(rows, roofs, palette)
    alt = f"Roofline: TFLOP/s by arithmetic intensity, {cells.dtype_name(dtype)}"
    charts.show(figure, view.title(rows, cells.dtype_name(dtype)), key=f"scaling_roofline_{dtype}", alt=alt)
    sources = list(dict.fromkeys(text.plain(roof.source) for roof in roofs))
    st.caption(f"Roofs: {'; '.join(sources)}." if roofs else "No roof is known for this device and dtype.")


def _rate_axis(drawn: pd.DataFrame, view: ScalingView) -> dict:
    """Return the axis of a quantity over all rows that are drawn: from 0, but logarithmic for costs."""
    values, title = drawn[view.quantity], {"title": {"text": _title(view.words)}}
    if view.quantity in COSTS:
        return charts.with_range(charts.log_axis(values.min(), values.max()), values.min(), values.max()) | title
    peak = [100.0] if view.quantity in _PEAKS else []
    if view.quantity == "tflops":
        of_dtype = ((dtype, cells.of_dtype(drawn, dtype)) for dtype in cells.dtypes(drawn))
        roofs = [each for kind, rows in of_dtype for each in _own_roofs(ask(scaling.roofs, view.chosen, kind), rows)]
        peak = [roof.tflops for roof in roofs if roof.tflops < _FAR * values.max()]
    return charts.from_zero(max(values.max(), *peak, 0)) | title


def _own_roofs(roofs: Sequence[Roof], drawn: pd.DataFrame) -> list[Roof]:
    """Return the peaks in a dtype's own precision: of the data sheet, and as the fastest one's run measured it."""
    own = [roof for roof in roofs if roof.tflops and roof.precision is None]
    run = drawn.loc[drawn["tflops"].idxmax(), "run_id"]
    return [roof for roof in own if not roof.measured or roof.name.endswith(f", {run}")]


def _spread(rows: pd.DataFrame) -> dict:
    up, down = (rows["p80"] - rows["latency_ms"]).clip(lower=0), (rows["latency_ms"] - rows["p20"]).clip(lower=0)
    return {"type": "data", "array": up.fillna(0), "arrayminus": down.fillna(0), "thickness": 1, "width": 3}


def _hover(row: dict, view: ScalingView) -> str:
    unit = "" if view.words.unit == "1/J" else f" {view.words.unit}"
    said = f"{text.significant(row[view.quantity])}{unit}"
    if view.quantity == "latency_ms" and not text.missing(row["p20"]):
        said += f" (p20 to p80 {text.significant(row['p20'])} to {text.significant(row['p80'])})"
    return said


def _guides(drawn: pd.DataFrame, column: str) -> list[dict]:
    """Return how a cost would grow, as dotted lines from the cheapest point of the shortest sequence.

    Time grows as the operations of these shapes do, which is with n where the batch shrinks as n grows and with n²
    where it stays; memory a token is constant, or grows with n where a score matrix is kept.
    """
    if column not in COSTS or drawn["seqlen_q"].nunique() < 2:
        return []
    powers = [0, 1] if column == "memory_per_token_kb" else _powers_of_time(drawn, column)
    start, end = drawn["seqlen_q"].min(), drawn["seqlen_q"].max()
    base, top = drawn[column].min(), drawn[column].max()
    found = []
    for power in powers:
        last = min(end, start * (top / base) ** (1 / power)) if power else end
        guide = {"type": "scatter", "x": [start, last], "y": [base, base * (last / start) ** power]}
        guide |= {"mode": "lines", "name": _POWERS.get(power, f"∝ n^{power}"), "hoverinfo": "skip"}
        found.append(guide | {"line": {"dash": "dot", "width": 1, "color": charts.EMPTY_COLOUR}})
    return found


def _powers_of_time(drawn: pd.DataFrame, column: str) -> list[int]:
    """Return the power of n with which the operations of these shapes grow, over the tokens for a time a token."""
    known = drawn.dropna(subset=["flops", "batch"]).sort_values("seqlen_q")
    ends = known.iloc[[0, -1]] if len(known) else known
    flops = scaling.growth(list(zip(ends["seqlen_q"], ends["flops"], strict=True)))
    tokens = scaling.growth(list(zip(ends["seqlen_q"], ends["seqlen_q"] * ends["batch"], strict=True)))
    if flops is None or tokens is None:
        return []
    return [round(flops - tokens) if column == "time_per_token_us" else round(flops)]


def _peaks(drawn: pd.DataFrame, column: str, roofs: Sequence[Roof]) -> list[dict]:
    """Return what bounds a rate: peaks in TFLOP/s, or the line that a share of a peak is a share of."""
    levels = {_PEAKS[column]: 100.0} if column in _PEAKS else {}
    levels |= {_PEAKS["percent_of_measured" if roof.measured else "percent_of_peak"]: roof.tflops for roof in roofs}
    ends = [drawn["seqlen_q"].min(), drawn["seqlen_q"].max()]
    line = {"type": "scatter", "x": ends, "mode": "lines", "hovertemplate": "%{fullData.name}: %{y:.3g}<extra></extra>"}
    style = {"dash": "dash", "width": 1.5, "color": charts.EMPTY_COLOUR}
    return [line | {"y": [level, level], "name": name, "line": style} for name, level in levels.items()]


def _highest(roofs: Sequence[Roof], intensity: float, reached: float) -> float:
    return max([reached, *(bound for roof in roofs if (bound := roof.at(intensity)))])


def _title(quantity: Quantity) -> str:
    return quantity.label if quantity.unit in ("", quantity.label, "%") else f"{quantity.label} ({quantity.unit})"


def _roof_words(roof: Roof) -> str:
    parts = [f"{roof.tflops:.0f} TFLOP/s"] if roof.tflops else []
    return ", ".join(parts + ([f"{roof.gb_per_s:.0f} GB/s"] if roof.gb_per_s else []))


def _notes(view: ScalingView, table: pd.DataFrame) -> str:
    """Say what is drawn beside the values, where it is."""
    if view.quantity == "memory_per_token_kb":
        return "Dotted: constant, and in proportion to n as with a score matrix."
    if view.quantity in COSTS:
        spread = "Bars: p20 to p80. " if view.quantity == "latency_ms" and table["p20"].notna().any() else ""
        return spread + "Dotted: growth as the operations of these shapes grow." * bool(table["flops"].notna().any())
    return _ABOVE if view.quantity == "percent_of_measured" else ""


_POWERS = {0: "constant", 1: "∝ n", 2: "∝ n²"}
