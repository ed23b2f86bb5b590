"""The parts of the page Power: the choice of traces, the headline, the curves and the numbers."""

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import charts, colours, messages, tables, text, titles
from pages.ui.draw.charts import Chart, ReferenceLine, Series
from pages.ui.draw.tables import Bar, TableColumn
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import select
from pages.ui.shell.data import ask
from results.query import sustained
from results.records import CASE_FIELDS

LABELS = text.WORDS["trace_quantities"]
MOST = 6  # the number of curves that a reader can tell apart
_IN_THE_NAME = ["implementation", *CASE_FIELDS, "mode", "created"]  # facts that the name of a trace states
_BELONG = "Energy is measured under load, where power can be at its limit. A single cold call can be faster than that."
STATE = text.WORDS["trace_state"]
RATES = {"tflops": "TFLOP/s {how}", "joules_per_tflop": "joules per TFLOP"}


def named(traces: pd.DataFrame) -> pd.DataFrame:
    """Return the traces, each named after its cell, and its run if two traces have the same cell."""
    names = [f"{row['implementation']} {_shape(row)}" for row in traces.to_dict("records")]
    runs = traces["run_id"].tolist()
    return traces.assign(
        trace=[f"{name}, {run}" if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)]
    )


def run_one() -> None:
    """Link to the form that starts a trace."""
    messages.link("run_sweep", "Trace a shape on this machine", "play_circle", protocol="sustained")


def choose(table: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen traces, or the newest."""
    there = table.loc[table["sustained_tflops"].notna(), "trace"].tolist()
    if not there:
        return table.head(0)
    chosen = select.bound(st.multiselect, "Traces", "traces", there, default=there[:1], max_selections=MOST)
    return table[table["trace"].isin(chosen or there[:1])]


def headline(chosen: pd.DataFrame) -> None:
    """Compare the sustained rate with the first second and with a sampled call."""
    for row in chosen.to_dict("records"):
        lasting = text.significant(row["sustained_tflops"])
        sampled = (
            f" A single sampled call, with a cold L2{_stated(row, {'cold_clock_mhz': ' at {:.0f} MHz'})}, reaches "
            f"{text.significant(row['cold_tflops'])} TFLOP/s: sustained is {row['of_cold']:.0f} % of that."
            if not text.missing(row["cold_tflops"])
            else ""
        )
        state = _stated(row, STATE)
        st.markdown(
            f"## {text.plain(row['implementation'])} sustains {row['of_burst']:.0f} % of its first-second "
            f"throughput: {lasting} of {text.significant(row['burst_tflops'])} TFLOP/s{state}"
            if not text.missing(row["of_burst"])
            else f"## {text.plain(row['implementation'])}: {lasting} TFLOP/s sustained{state}"
        )
        gpu = "a GPU that is not stated" if text.missing(row["gpu_name"]) else text.plain(row["gpu_name"])
        st.caption(f"{messages.source_badges([row['source']])} {text.plain(row['trace'])}, on {gpu}.{sampled}")


def show_curves(chosen: pd.DataFrame) -> None:
    """Draw each quantity by time, a line for each trace."""
    table = slices(chosen)
    if table.empty:
        st.caption("The chosen traces have no stored slices.")
        return
    over = select.segments("Over", "trace_over", ("time", "SM clock"))
    against = "seconds" if over == "time" else "sustained_clock_mhz"
    alt = f"TFLOP/s, joules per TFLOP, power and temperature over {over}, each trace in its color"
    charts.show(panels(table, chosen, against), title(chosen), key="sustained_chart", alt=alt)
    messages.say("sustained")


def title(chosen: pd.DataFrame) -> ChartTitle:
    """Return the title of a chart or file with these traces."""
    gpus = sorted({"GPU not stated" if text.missing(name) else name for name in chosen["gpu_name"]})
    return ChartTitle("Sustained throughput", (*gpus, *chosen["trace"]), titles.of_runs(chosen["run_id"]))


def energy() -> None:
    """Ask for a shape whose energy was measured; draw the rate and the energy of each kernel."""
    table = ask(sustained.energies)
    if table.empty:
        st.caption("No run measured energy. The sweep energy does, on a GPU whose driver reports it.")
        return
    firsts = {str(row["cell"]): row for row in table.drop_duplicates("cell").to_dict("records")}

    def said(cell: str) -> str:
        row = firsts[cell]
        return f"{row['gpu_name']}: {_shape(row)}, {row['run_id']}"

    cell = select.named_choice("Shape with energy", "energy_of", list(firsts), next(iter(firsts)), said)
    rows = table[table["cell"] == int(cell)].sort_values("joules_per_tflop").to_dict("records")
    least, fastest = rows[0], max(rows, key=lambda row: row["tflops"])
    words = f"## {_rate(least)}: the least energy"
    st.markdown(f"{words}, and the fastest" if fastest is least else f"{words}; the fastest is {_rate(fastest)}")
    palette = colours.palette([row["implementation"] for row in rows])
    columns = {"implementation": TableColumn("implementation")}
    for name, label in RATES.items():
        columns[name] = TableColumn(label.format(how=_how(rows[0])), axis=tables.linear_axis(row[name] for row in rows))
        for row in rows:
            row[name] = Bar(row[name], text.significant(row[name]), palette[row["implementation"]])
    columns["cold_tflops"] = TableColumn("cold TFLOP/s", text.significant)
    tables.show_table(rows, columns, "Rate and energy of every kernel", _BELONG)
    by_limit(table[table["setting"] == rows[0]["setting"]])
    with st.container(horizontal=True):
        messages.link("scaling", "Energy by seqlen", "bolt", quantity="joules_per_tflop")
        messages.link("compare", "GPUs per watt", "bolt", of="GPUs", quantity="gflops_per_watt")


def by_limit(rows: pd.DataFrame) -> None:
    """Draw rate and energy by power limit if the runs of the shape had several; otherwise say how to get them."""
    limits = sorted(rows["power_limit_w"].dropna().unique())
    if len(limits) < 2:
        messages.say("power_limits", count=len(limits))
        st.code(messages.SAID["power_limits"]["command"], language=None, wrap_lines=True)
        return
    rows = rows.sort_values("power_limit_w").drop_duplicates(["implementation", "power_limit_w"])
    palette, found = colours.palette(rows["implementation"].unique()), []
    for panel, (name, label) in enumerate(RATES.items()):
        hover = f"{{{name}:.3g}} {label.format(how='')}".format_map
        lines = charts.lines(rows.to_dict("records"), name, palette, hover, by="power_limit_w")
        found += [replace(each, panel=panel, group=each.name, legend=not panel) for each in lines]
    axes = [charts.titled(label.format(how="").strip()) | {"rangemode": "tozero"} for label in RATES.values()]
    chart = Chart(found, charts.titled("Power limit (W)"), {}, 450, rows=axes)
    named = ChartTitle("Rate and energy by power limit", (), titles.of_runs(rows["run_id"]))
    charts.show(chart, named, key="limits_chart")


def numbers_table(table: pd.DataFrame) -> None:
    """Draw every trace in numbers, or the reason why it is missing."""
    shown = tables.in_words(table.set_index("trace").reset_index()).drop(columns=_IN_THE_NAME)
    tables.grid(shown.dropna(axis="columns", how="all"), "Every trace", tables.declared("traces"))


def slices(chosen: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen traces slice by slice as one table."""
    cells = chosen.astype(object).where(chosen.notna(), None).to_dict("records")
    found = [(row["trace"], ask(sustained.series, {k: row[k] for k in sustained.CELL})) for row in cells]
    tables = [table.assign(trace=name) for name, table in found]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["trace"])


def panels(slices: pd.DataFrame, cells: pd.DataFrame, against: str = "seconds") -> Chart:
    """Return the quantities of traces over time or over the SM clock, a panel for each quantity.

    `cells` holds the sampled rate and the power limit of each trace.
    """
    names = [name for name in LABELS if name != against and name in slices and slices[name].notna().any()]
    found, rules = [], []
    for at, (trace, rows) in enumerate(slices.groupby("trace", sort=True)):
        colour = colours.legible(colours.SPARE_COLOURS[at % len(colours.SPARE_COLOURS)], colours.theme())
        look: dict[str, Any] = {
            "line": "solid" if against == "seconds" else "",
            "width": 1.5,
            "size": 4,
            "symbol": colours.SYMBOLS[at % len(colours.SYMBOLS)],
        }
        for panel, name in enumerate(names):
            if rows[name].notna().any():
                said = [f"{trace}: {value:.3g} {LABELS[name]}" for value in rows[name]]
                legend = not panel and slices["trace"].nunique() > 1  # the title names a single trace
                look |= {"group": str(trace), "legend": legend, "panel": panel}
                found.append(Series(str(trace), rows[against], rows[name], colour, said, **look))
        cell = cells[cells["trace"] == trace].iloc[0]
        for name, level, look_of in (
            ("sustained_tflops", cell["cold_tflops"], (colour, "dash")),
            ("sustained_power_w", cell["power_limit_w"], (colours.EMPTY_COLOUR, "dot")),
        ):
            if name in names and level == level:
                rules.append(ReferenceLine(level, *look_of, panel=names.index(name)))
    rows = [charts.titled(LABELS[name]) for name in names]
    rows[0] |= {"rangemode": "tozero"}
    timed = charts.titled("Time (s)") | {"rangemode": "tozero"}
    x, hover = (timed, "x unified") if against == "seconds" else (charts.titled(LABELS[against]), "closest")
    return Chart(found, x, {}, 110 + 170 * len(names), hover, rules=rules, rows=rows)


def _shape(row: dict) -> str:
    mask = "" if row["causal"] is None else f", {text.mask(row['causal'], row['window_size'])}"
    mode = text.MODE_WORDS.get(row["mode"], row["mode"])
    return (
        f"{mode}, seqlen {text.size(row['seqlen_q'])}, "
        f"head_dim {row['head_dim']}, {row['dtype']}{mask}, B{row['batch']} H{row['num_heads']}"
    )


def _rate(row: dict) -> str:
    rate, joules = text.significant(row["tflops"]), text.significant(row["joules_per_tflop"])
    power = _stated(row, {"watts": " ({:.0f} W)"})
    return f"{text.plain(row['implementation'])}, {rate} TFLOP/s {_how(row)}{power} at {joules} joules per TFLOP"


def _how(row: dict) -> str:
    return "within the power limit" if text.missing(row["watts"]) else "under load"


def _stated(row: dict, words: dict[str, str]) -> str:
    return "".join(said.format(row[name]) for name, said in words.items() if not text.missing(row[name]))
