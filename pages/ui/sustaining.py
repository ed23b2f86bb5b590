"""The parts of the sustained page: which traces, what they say, their curves, their numbers."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui import messages, sustaining_charts, words
from pages.ui.data import ask
from pages.ui.reporting_charts import png
from results import sustained

MOST = 6  # curves that can still be told apart
COLUMNS = (
    *("trace", "gpu_name", "burst_tflops", "sustained_tflops", "of_burst", "cold_tflops", "of_cold"),
    *("sustained_clock_mhz", "cold_clock_mhz", "sustained_power_w", "power_limit_w", "sustained_temperature_c"),
    *("status", "note", "source", "run_id"),
)
COMMAND = (
    "python -m runner run fa_paper --sustained --set seqlen=4096 --set head_dim=128 --set causal=true --set modes=fwd "
    "--implementations triton_fa2"
)


def named(traces: pd.DataFrame) -> pd.DataFrame:
    """The traces with a name for each that says its cell, and its run where two are of the same cell."""
    names = [_name(row) for row in traces.to_dict("records")]
    runs = traces["run_id"].tolist()
    return traces.assign(
        trace=[f"{name}, {run}" if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)]
    )


def nothing_here() -> None:
    """What makes a trace."""
    st.info("No trace yet: it is half a minute of back-to-back calls of one cell.", icon=":material/thermostat:")
    run_one()
    st.markdown("On another machine this makes one; carry the run's folder home or upload it.")
    st.code(COMMAND, language=None, wrap_lines=True)
    st.page_link("pages/upload.py", label="Upload results", icon=":material/upload:")


def run_one() -> None:
    """A link to the form that starts a trace."""
    st.page_link(
        "pages/run_sweep.py",
        label="Trace a cell on this machine",
        icon=":material/play_circle:",
        query_params={"protocol": "sustained"},
    )


def choose(table: pd.DataFrame) -> pd.DataFrame:
    """The traces that are drawn: those chosen, or the newest."""
    there = table.loc[table["sustained_tflops"].notna(), "trace"].tolist()
    if not there:
        return table.head(0)
    chosen = st.multiselect("Traces", there, default=there[:1], key="traces", bind="query-params", max_selections=MOST)
    return table[table["trace"].isin(chosen or there[:1])]


def headline(chosen: pd.DataFrame) -> None:
    """What remains of the first second and of a sampled call."""
    for row in chosen.to_dict("records"):
        lasting = words.significant(row["sustained_tflops"])
        sampled = (
            f" A call sampled on its own, with a cold L2{_at(row['cold_clock_mhz'], ' MHz', ' at ')}, reaches "
            f"{words.significant(row['cold_tflops'])}: sustained is {row['of_cold']:.0f} % of that."
            if not words.missing(row["cold_tflops"])
            else ""
        )
        state = "".join(
            (
                _at(row["sustained_clock_mhz"], " MHz", ", at "),
                _at(row["sustained_power_w"], " W", ", "),
                _at(row["power_limit_w"], " W", " of "),
                _at(row["sustained_temperature_c"], " °C", ", "),
            )
        )
        st.markdown(
            f"#### {words.plain(row['implementation'])} keeps {row['of_burst']:.0f} % of its first second: "
            f"{lasting} of {words.significant(row['burst_tflops'])} TFLOP/s{state}"
            if not words.missing(row["of_burst"])
            else f"#### {words.plain(row['implementation'])}: {lasting} TFLOP/s sustained{state}"
        )
        gpu = "a GPU that is not named" if words.missing(row["gpu_name"]) else words.plain(row["gpu_name"])
        st.caption(f"{messages.source_badges([row['source']])} {words.plain(row['trace'])}, on {gpu}.{sampled}")


def trace_charts(chosen: pd.DataFrame) -> None:
    """Each quantity by time, a line a trace."""
    table = slices(chosen)
    if table.empty:
        st.caption("No slices are stored of what is chosen.")
        return
    figure = sustaining_charts.traces(table, chosen)
    st.plotly_chart(
        figure,
        key="sustained_chart",
        config=png("sustained"),
        alt="TFLOP/s, SM clock, power and temperature by seconds, a line a trace",
    )
    st.caption(
        "Each mark is a slice of about a quarter of a second of back-to-back calls, the L2 warm. Sustained figures are "
        "medians of the last third, burst of the first second. Dashed: a sampled call with a cold L2; dotted: the "
        "power limit. A clock that falls while power is at its limit is the price of the power, not of heat. The "
        "camera saves a PNG."
    )


def numbers_table(table: pd.DataFrame) -> None:
    """Every trace in numbers, and why one is missing."""
    shown = table.assign(
        status=[words.status(status) for status in table["status"]],
        note=table["note"].fillna(""),
        source=[words.sources(source) for source in table["source"]],
    )
    number = {
        "burst_tflops": ("burst (TFLOP/s)", "%.4g", "Median of the first second"),
        "sustained_tflops": ("sustained (TFLOP/s)", "%.4g", "Median of the last third"),
        "of_burst": ("of burst (%)", "%.1f", "Sustained over burst"),
        "cold_tflops": ("sampled (TFLOP/s)", "%.4g", "Of the kernel time of the same cell and run, with a cold L2"),
        "of_cold": ("of sampled (%)", "%.1f", "Sustained over sampled"),
        "sustained_clock_mhz": ("SM clock (MHz)", "%.0f", "Sustained"),
        "cold_clock_mhz": ("SM clock, sampled (MHz)", "%.0f", "While the kernel time was sampled"),
        "sustained_power_w": ("power (W)", "%.0f", "Sustained"),
        "power_limit_w": ("power limit (W)", "%.0f", "Of the GPU"),
        "sustained_temperature_c": ("temperature (°C)", "%.0f", "Sustained"),
    }
    config = {
        name: st.column_config.NumberColumn(label, format=form, help=about)
        for name, (label, form, about) in number.items()
    }
    st.dataframe(
        shown[[*COLUMNS]].dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Every trace: burst and sustained figures",
        column_config=config | {"trace": st.column_config.TextColumn("trace", width="large")},
    )


def slices(chosen: pd.DataFrame) -> pd.DataFrame:
    """The chosen traces slice by slice, one below the other."""
    cells = chosen.astype(object).where(chosen.notna(), None).to_dict("records")
    found = [(row["trace"], ask(sustained.series, {k: row[k] for k in sustained.CELL})) for row in cells]
    tables = [table.assign(trace=name) for name, table in found]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["trace"])


def _name(row: dict) -> str:
    mask = "" if row["causal"] is None else ", causal" if row["causal"] else ", full"
    window = f" window {row['window_size']}" if row["window_size"] else ""
    mode = words.MODE_WORDS.get(row["mode"], row["mode"])
    return (
        f"{row['implementation']} {mode}, seqlen {words.size(row['seqlen_q'])}, "
        f"head_dim {row['head_dim']}, {row['dtype']}{mask}{window}, B{row['batch']} H{row['num_heads']}"
    )


def _at(number: float | None, unit: str, before: str) -> str:
    return "" if words.missing(number) else f"{before}{number:.0f}{unit}"
