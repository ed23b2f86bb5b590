"""Growth by seqlen: the choice of quantity and shape, lines, the roofline, and the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, colours, messages, tables, text, titles
from pages.ui.draw.charts import Chart, Series
from pages.ui.filters import chips, select
from pages.ui.shell.data import ask, ask_slowly
from results.implementations import facts_of
from results.query import scaling
from results.query.declared import of_rows
from results.query.scaling import ENERGIES, QUANTITIES, Quantity, Roof
from results.slice import Filters, level_in

RATES = ("tflops", "percent_of_peak", "percent_of_measured")  # drawn on a linear axis from 0
COSTS = ("latency_ms", "time_per_token_us", "memory_per_token_kb")  # drawn on a logarithmic axis
COLUMNS = text.WORDS["column_orders"]["scaling"]
ROOFLINE = "roofline"
_FIRST_HEAD_DIM = "128"  # the most common head_dim of models
_SHOWN = ("implementation", "dtype", "seqlen", "latency_ms", "p20", "p80", "tflops", "percent_of_peak")
_AFTER = ("growth", "status", "note", "source", "run_id")
_PEAKS = {"percent_of_peak": "data-sheet peak", "percent_of_measured": "measured peak"}  # at 100 %
_FAR = 4  # a peak above this multiple of the highest rate is not drawn, because it would flatten the lines
_POWERS = {0: "constant", 1: "∝ n", 2: "∝ n²"}
_ABOVE = "Above 100 %: faster than the matrix product that the run measured, at its clock. "


@dataclass(frozen=True)
class ScalingView:
    """The choices of the page: a quantity of one shape."""

    chosen: Filters
    quantity: str
    kept: str  # head_dim, batch and heads, in words

    @property
    def words(self) -> Quantity:
        """Return the label, unit and description of the quantity."""
        return QUANTITIES[self.quantity]

    def title(self, table: pd.DataFrame, dtype: str | None = None) -> titles.ChartTitle:
        """Return the title of a chart or file with these rows."""
        what = "Roofline" if self.quantity == ROOFLINE else f"{self.words.label} by seqlen"
        named = what if dtype is None else f"{what}, {dtype}"
        return titles.of_slice(named, self.chosen, table["run_id"].unique(), more=[self.kept])


def show() -> None:
    """Draw one quantity by seqlen with its peaks, or the roofline, and every number."""
    chosen = chips.current()
    table = ask_slowly(scaling.rows, chosen)
    if not table["latency_ms"].notna().any():
        messages.nothing_here(chosen)
        return
    energy = ask_slowly(scaling.rows_of_energy, chosen)
    names = [name for name in QUANTITIES if (energy if name in ENERGIES else table)[name].notna().any()]
    names += [ROOFLINE] * bool(table["tflops"].notna().any() and table["intensity"].notna().any())
    words = {name: quantity.label for name, quantity in QUANTITIES.items()} | {ROOFLINE: "Roofline"}
    with st.container(horizontal=True, gap="medium"):
        quantity = select.pills("Quantity", "quantity", names, format_func=words.get)
        table, view = choose(energy if quantity in ENERGIES else table, quantity, chosen)
    if quantity not in ENERGIES:
        headline(table)
    show_charts(table, view)
    caption(view, table)
    st.subheader("Every number")
    found = numbers(table)
    numbers_table(found, quantity)
    messages.download_slice("Download numbers", view.title(table), chosen, lambda: found, "scaling_csv")
    messages.provenance(chosen, newer=True)


def choose(table: pd.DataFrame, quantity: str, chosen: Filters) -> tuple[pd.DataFrame, ScalingView]:
    """Ask for one head_dim, and one batch and head count; return the rows and the choices."""
    if quantity == ROOFLINE:
        return table, ScalingView(chosen, quantity, "all shapes of the slice")
    whole = table.assign(width=table["head_dim"].map(text.size))
    rows, head_dim = select.rows_of_one(whole, "width", quantity, "scaling_head_dim", "head_dim", first=_FIRST_HEAD_DIM)
    rows, shape = select.rows_of_one(rows, "shape", quantity, "scaling_shape", "Batch and heads")
    _offer_others(whole, quantity, head_dim)
    kept = f"head_dim {head_dim}" + (f" · {shape}" if chosen.shape is None else "")
    return rows, ScalingView(chosen, quantity, kept)


def _offer_others(table: pd.DataFrame, quantity: str, head_dim: str) -> None:
    """Name the head_dim at which a quantity was measured if the chosen one has no number, and offer to show it."""
    known = table[table[quantity].notna()]
    there = sorted(known["width"].unique(), key=lambda width: (len(width), width))
    if head_dim in there or not there:
        return
    label = QUANTITIES[quantity].label
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"{label} is known at head_dim {', '.join(there)} only.", width="content")
        wanted = {"scaling_head_dim": there[0]}
        st.button(f"Show head_dim {there[0]}", key="show_head_dim", on_click=st.session_state.update, args=(wanted,))


def headline(table: pd.DataFrame) -> None:
    """Name the highest rate in the precision of its dtype, and its share of the peak."""
    said, runs = ask(of_rows), table[["implementation", "run_id"]].itertuples(index=False)
    fair = table.loc[[not facts_of(name, said, run).reduced for name, run in runs]]  # TF32 and FP8 have other peaks
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
        f"## Highest at {best['dtype']} precision: {text.plain(best['implementation'])}, "
        f"{text.significant(best['tflops'])} TFLOP/s at seqlen {text.size(best['seqlen_q'])}"
        f"{' (' + ', '.join(shares) + ')' if shares else ''}"
    )
    if not text.missing(best["percent_of_measured"]) and best["percent_of_measured"] > 100:
        st.caption(_ABOVE)


def show_charts(table: pd.DataFrame, view: ScalingView) -> None:
    """Draw one chart for each dtype, all on the same axis."""
    palette = colours.palette(table["implementation"].unique().tolist())
    if view.quantity == ROOFLINE:
        cells.facets(table, lambda rows, dtype: _show_roofline(rows, dtype, palette, view))
        return
    drawn = table[table[view.quantity] > 0]
    if drawn.empty:
        st.caption(f"No number of this kind at {view.kept}: {view.words.label}.")
        return
    axis = _rate_axis(drawn, view)

    def chart(rows: pd.DataFrame, dtype: str | None) -> Chart:
        roofs = _own_roofs(ask(scaling.roofs, view.chosen, dtype), rows) if view.quantity == "tflops" else []
        return lines(rows, view, palette, axis, roofs)

    alt = f"{view.words.label} by seqlen, one line for each implementation"
    charts.show_by_dtype(drawn, chart, view.title, f"scaling_{view.quantity}", alt)


def caption(view: ScalingView, table: pd.DataFrame) -> None:
    """Describe the quantity and how often it was measured; the help says what the numbers count."""
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
    """Return the numbers of every line, with the growth exponent over the last two lengths."""
    places = ["implementation", "dtype"]
    powers = {
        place: scaling.growth(list(zip(rows["seqlen_q"], rows["latency_ms"], strict=True)))
        for place, rows in table.dropna(subset=["latency_ms"]).groupby(places, dropna=False)
    }
    shown = table[[*COLUMNS]].rename(columns={"seqlen_q": "seqlen"})
    powers_of = [powers.get(place) for place in zip(shown["implementation"], shown["dtype"], strict=True)]
    shown = shown.assign(growth=pd.Series(powers_of, index=shown.index, dtype=float))
    return shown.sort_values("latency_ms", key=pd.isna, kind="stable")  # rows without a number come last


def numbers_table(table: pd.DataFrame, quantity: str) -> None:
    """Draw the numbers of every line in the columns that matter for a quantity; the file has all columns."""
    wanted = [*_SHOWN, *([quantity] if quantity in QUANTITIES and quantity not in _SHOWN else []), *_AFTER]
    columns = {name: tables.number(_title(q), help=q.about) for name, q in QUANTITIES.items()}
    shown = tables.in_words(table)[wanted].dropna(axis="columns", how="all")
    tables.grid(shown, "Numbers of every line", cells.NUMBERS | columns | tables.declared("growth"))


def lines(
    rows: pd.DataFrame, view: ScalingView, palette: dict[str, str], y_axis: dict, roofs: Sequence[Roof] = ()
) -> Chart:
    """Return a quantity by seqlen, a line for each implementation: latencies with p20 to p80, rates with peaks."""
    column = view.quantity
    found = charts.lines(rows.to_dict("records"), column, palette, lambda row: _hover(row, view), by="seqlen_q")
    if column == "latency_ms":
        for at, line in enumerate(found):
            own = rows[rows["implementation"] == line.name].sort_values("seqlen_q")
            up, down = own["p80"] - own["latency_ms"], own["latency_ms"] - own["p20"]
            found[at] = replace(line, errors=(up.clip(lower=0).fillna(0), down.clip(lower=0).fillna(0)))
    found += [*_guides(rows, column), *_peaks(rows, column, roofs)]
    return charts.by_size(found, "seqlen", rows["seqlen_q"], y_axis, room_for=palette)


def roofline(rows: pd.DataFrame, roofs: Sequence[Roof], palette: dict[str, str]) -> Chart:
    """Return TFLOP/s by arithmetic intensity, a point for each shape, below the device's roofs; both logarithmic."""
    drawn = rows[(rows["tflops"] > 0) & (rows["intensity"] > 0)]
    low, high = drawn["intensity"].min() / 2, drawn["intensity"].max() * 2
    found = _roof_lines(roofs, low, high)
    look: dict[str, Any] = {"line": "", "size": 8, "opacity": 0.85}
    found += charts.lines(drawn.to_dict("records"), "tflops", palette, _point_words, by="intensity", **look)
    x = charts.log_axis(low, high) | charts.titled("Arithmetic intensity (FLOP/byte, minimum traffic)")
    top = max([drawn["tflops"].max(), *(bound for roof in roofs if (bound := roof.at(high)))])
    return Chart(found, x, charts.log_axis(drawn["tflops"].min(), top) | charts.titled("TFLOP/s"), height=520)


def _point_words(row: dict) -> str:
    return (
        f"seqlen {text.size(row['seqlen_q'])}, head_dim {row['head_dim']:.0f}\n"
        f"{text.significant(row['tflops'])} TFLOP/s, at least {text.significant(row['gb_per_s'])} GB/s"
    )


def _roof_lines(roofs: Sequence[Roof], low: float, high: float) -> list[Series]:
    """Return each roof as a line over these intensities, in FLOP/byte; the legend names each kind once."""
    kinds = [roof.name.partition(",")[0] for roof in roofs]  # several runs may have a measured roof of the same kind
    found = []
    for at, (kind, roof) in enumerate(zip(kinds, roofs, strict=True)):
        ridge = 1000 * roof.tflops / roof.gb_per_s if roof.tflops and roof.gb_per_s else None
        xs = [low, *([ridge] if ridge and low < ridge < high else []), high]
        look: dict[str, Any] = {
            "line": "dash" if kind.startswith("measured") else "solid",
            "legend": kind not in kinds[:at],
        }
        look |= {"width": 1 if kind.endswith(("TF32", "FP8")) else 2, "group": kind}
        hover = f"{roof.name}: {_roof_words(roof)}"
        found.append(charts.reference(f"{kind} roof", xs, [roof.at(x) for x in xs], hover, **look))
    return found


def _show_roofline(rows: pd.DataFrame, dtype: str | None, palette: dict[str, str], view: ScalingView) -> None:
    name = cells.dtype_name(dtype)
    if not (rows["tflops"] > 0).any():
        st.caption(f"No FLOP/s in {name}: the source does not state the whole shape.")
        return
    roofs = ask_slowly(scaling.roofs, view.chosen, dtype)
    alt = f"Roofline: TFLOP/s by arithmetic intensity, {name}"
    charts.show(roofline(rows, roofs, palette), view.title(rows, name), key=f"scaling_roofline_{dtype}", alt=alt)
    sources = list(dict.fromkeys(text.plain(roof.source) for roof in roofs))
    st.caption(f"Roofs: {'; '.join(sources)}." if roofs else "No roof is known for this device and dtype.")


def _rate_axis(drawn: pd.DataFrame, view: ScalingView) -> dict:
    """Return the axis of a quantity over all drawn rows: linear from 0, or logarithmic for costs."""
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
    """Return the peaks in the precision of the dtype: of the data sheet, and of the fastest row's run."""
    own = [roof for roof in roofs if roof.tflops and roof.precision is None]
    run = drawn.loc[drawn["tflops"].idxmax(), "run_id"]
    return [roof for roof in own if not roof.measured or roof.name.endswith(f", {run}")]


def _hover(row: dict, view: ScalingView) -> str:
    unit = "" if view.words.unit == "1/J" else f" {view.words.unit}"
    said = f"{text.significant(row[view.quantity])}{unit}"
    if view.quantity == "latency_ms" and not text.missing(row["p20"]):
        said += f" (p20 to p80 {text.significant(row['p20'])} to {text.significant(row['p80'])})"
    return said


def _guides(drawn: pd.DataFrame, column: str) -> list[Series]:
    """Return dotted lines of expected growth, from the lowest cost at the shortest sequence.

    Time grows as the operations of these shapes: with n if the batch shrinks as n grows, with n² if the batch is
    constant. Memory per token is constant, or grows with n if a score matrix is kept.
    """
    if column not in COSTS or drawn["seqlen_q"].nunique() < 2:
        return []
    powers = [0, 1] if column == "memory_per_token_kb" else _powers_of_time(drawn, column)
    start, end = drawn["seqlen_q"].min(), drawn["seqlen_q"].max()
    base, top = drawn[column].min(), drawn[column].max()
    found = []
    for power in powers:
        last = min(end, start * (top / base) ** (1 / power)) if power else end
        name, y = _POWERS.get(power, f"∝ n^{power}"), [base, base * (last / start) ** power]
        found.append(charts.reference(name, [start, last], y, line="dot", width=1))
    return found


def _powers_of_time(drawn: pd.DataFrame, column: str) -> list[int]:
    """Return the power of n with which the operations of these shapes grow; for a time per token, over the tokens."""
    known = drawn.dropna(subset=["flops", "batch"]).sort_values("seqlen_q")
    ends = known.iloc[[0, -1]] if len(known) else known
    flops = scaling.growth(list(zip(ends["seqlen_q"], ends["flops"], strict=True)))
    tokens = scaling.growth(list(zip(ends["seqlen_q"], ends["seqlen_q"] * ends["batch"], strict=True)))
    if flops is None or tokens is None:
        return []
    return [round(flops - tokens) if column == "time_per_token_us" else round(flops)]


def _peaks(drawn: pd.DataFrame, column: str, roofs: Sequence[Roof]) -> list[Series]:
    """Return the upper bounds of a rate: peaks in TFLOP/s, or the line at 100 %."""
    levels = {_PEAKS[column]: 100.0} if column in _PEAKS else {}
    levels |= {_PEAKS["percent_of_measured" if roof.measured else "percent_of_peak"]: roof.tflops for roof in roofs}
    ends = [drawn["seqlen_q"].min(), drawn["seqlen_q"].max()]
    return [charts.reference(name, ends, [at, at], f"{name}: {at:.3g}") for name, at in levels.items()]


def _title(quantity: Quantity) -> str:
    return quantity.label if quantity.unit in ("", quantity.label, "%") else f"{quantity.label} ({quantity.unit})"


def _roof_words(roof: Roof) -> str:
    parts = [f"{roof.tflops:.0f} TFLOP/s"] if roof.tflops else []
    return ", ".join(parts + ([f"{roof.gb_per_s:.0f} GB/s"] if roof.gb_per_s else []))


def _notes(view: ScalingView, table: pd.DataFrame) -> str:
    """Explain the error bars and dotted lines of a chart, if it has any."""
    if view.quantity == "memory_per_token_kb":
        return "Dotted: constant, and proportional to n as with a score matrix."
    if view.quantity in COSTS:
        spread = "Bars: p20 to p80. " if view.quantity == "latency_ms" and table["p20"].notna().any() else ""
        return spread + "Dotted: growth of the operations of these shapes." * bool(table["flops"].notna().any())
    return _ABOVE if view.quantity == "percent_of_measured" else ""
