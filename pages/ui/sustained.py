"""The parts of the sustained page: which traces, what they say, their curves, their numbers."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

from pages.ui.draw import charts, messages, text, titles
from pages.ui.draw.titles import ChartTitle
from pages.ui.shell.data import ask
from results.query import sustained

LABELS = {
    "sustained_tflops": "TFLOP/s",
    "sustained_clock_mhz": "SM clock (MHz)",
    "sustained_power_w": "Power (W)",
    "sustained_temperature_c": "Temperature (°C)",
}


_WORDS = {
    "trace": st.column_config.TextColumn("trace", width="medium", pinned=True),
    "gpu_name": st.column_config.TextColumn("GPU"),
    "run_id": st.column_config.TextColumn("run"),
}
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
    """Return the traces with a name for each that says its cell, and its run where two are of one cell."""
    names = [_name(row) for row in traces.to_dict("records")]
    runs = traces["run_id"].tolist()
    return traces.assign(
        trace=[f"{name}, {run}" if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)]
    )


def nothing_here() -> None:
    """Say what makes a trace."""
    st.info("No trace yet. A trace is half a minute of back-to-back calls of one shape.", icon=":material/thermostat:")
    run_one()
    st.markdown("This command makes one on another machine; then upload the run's folder.")
    st.code(COMMAND, language=None, wrap_lines=True)
    st.page_link("pages/upload.py", label="Upload results", icon=":material/upload:")


def run_one() -> None:
    """Link to the form that starts a trace."""
    st.page_link(
        "pages/run_sweep.py",
        label="Trace a shape on this machine",
        icon=":material/play_circle:",
        query_params={"protocol": "sustained"},
    )


def choose(table: pd.DataFrame) -> pd.DataFrame:
    """Return the traces that are drawn: those chosen, or the newest."""
    there = table.loc[table["sustained_tflops"].notna(), "trace"].tolist()
    if not there:
        return table.head(0)
    chosen = st.multiselect("Traces", there, default=there[:1], key="traces", bind="query-params", max_selections=MOST)
    return table[table["trace"].isin(chosen or there[:1])]


def headline(chosen: pd.DataFrame) -> None:
    """Say what remains of the first second and of a sampled call."""
    for row in chosen.to_dict("records"):
        lasting = text.significant(row["sustained_tflops"])
        sampled = (
            f" A call sampled on its own, with a cold L2{_at(row['cold_clock_mhz'], ' MHz', ' at ')}, reaches "
            f"{text.significant(row['cold_tflops'])}: sustained is {row['of_cold']:.0f} % of that."
            if not text.missing(row["cold_tflops"])
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
            f"#### {text.plain(row['implementation'])} sustains {row['of_burst']:.0f} % of its first-second "
            f"throughput: {lasting} of {text.significant(row['burst_tflops'])} TFLOP/s{state}"
            if not text.missing(row["of_burst"])
            else f"#### {text.plain(row['implementation'])}: {lasting} TFLOP/s sustained{state}"
        )
        gpu = "a GPU that is not stated" if text.missing(row["gpu_name"]) else text.plain(row["gpu_name"])
        st.caption(f"{messages.source_badges([row['source']])} {text.plain(row['trace'])}, on {gpu}.{sampled}")


def show_curves(chosen: pd.DataFrame) -> None:
    """Draw each quantity by time, a line a trace."""
    table = slices(chosen)
    if table.empty:
        st.caption("The chosen traces have no stored slices.")
        return
    figure = panels(table, chosen)
    alt = "TFLOP/s, SM clock, power and temperature by seconds, a line a trace"
    charts.show(figure, title(chosen), key="sustained_chart", alt=alt)
    st.caption(
        "Dashed: a sampled call with a cold L2. Dotted: the power limit. If the clock falls while power is at its "
        "limit, the GPU is power-throttled, not thermally.",
        help="Each mark is about a quarter of a second of back-to-back calls with a warm L2. Sustained figures are "
        "medians of the last third, burst figures of the first second.",
    )


def title(chosen: pd.DataFrame) -> ChartTitle:
    """Return the title of the chart, or of the file, of these traces."""
    gpus = sorted({"GPU not stated" if text.missing(name) else name for name in chosen["gpu_name"]})
    return ChartTitle("Sustained throughput", (*gpus, *chosen["trace"]), titles.of_runs(chosen["run_id"]))


def numbers_table(table: pd.DataFrame) -> None:
    """Draw every trace in numbers, and why one is missing."""
    shown = table.assign(
        status=[text.status(status) for status in table["status"]],
        source=[text.sources(source) for source in table["source"]],
    )
    number = {
        "burst_tflops": ("burst (TFLOP/s)", "%.3g", "Median of the first second"),
        "sustained_tflops": ("sustained (TFLOP/s)", "%.3g", "Median of the last third"),
        "of_burst": ("of burst (%)", "%.3g", "Sustained over burst"),
        "cold_tflops": ("sampled (TFLOP/s)", "%.3g", "Of the kernel time of the same cell and run, with a cold L2"),
        "of_cold": ("of sampled (%)", "%.3g", "Sustained over sampled"),
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
        column_config=config | _WORDS,
        placeholder="–",
    )


def slices(chosen: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen traces slice by slice, one below the other."""
    cells = chosen.astype(object).where(chosen.notna(), None).to_dict("records")
    found = [(row["trace"], ask(sustained.series, {k: row[k] for k in sustained.CELL})) for row in cells]
    tables = [table.assign(trace=name) for name, table in found]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["trace"])


def panels(slices: pd.DataFrame, cells: pd.DataFrame) -> go.Figure:
    """Return what a GPU did while a cell ran on and on, a panel for each quantity over the same seconds.

    `cells` holds the sampled rate and the power limit of each trace.
    """
    names = [name for name in LABELS if name in slices and slices[name].notna().any()]
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.04)
    for at, (trace, rows) in enumerate(slices.groupby("trace", sort=True)):
        colour = charts.legible(charts.SPARE_COLOURS[at % len(charts.SPARE_COLOURS)], charts.theme())
        cell = cells[cells["trace"] == trace].iloc[0]
        for place, name in enumerate(names, start=1):
            if rows[name].notna().any():
                figure.add_scatter(
                    x=rows["seconds"],
                    y=rows[name],
                    name=trace,
                    legendgroup=trace,
                    showlegend=place == 1 and slices["trace"].nunique() > 1,  # one is named above the chart
                    mode="lines+markers",
                    line={"color": colour, "width": 1.5},
                    marker={"symbol": charts.SYMBOLS[at % len(charts.SYMBOLS)], "size": 4, "color": colour},
                    hovertemplate=f"%{{fullData.name}}: %{{y:.3r}} {LABELS[name]}<extra></extra>",
                    row=place,
                    col=1,
                )
        _level(figure, names, "sustained_tflops", cell["cold_tflops"], colour, "dash")
        _level(figure, names, "sustained_power_w", cell["power_limit_w"], charts.EMPTY_COLOUR, "dot")
    for place, name in enumerate(names, start=1):
        figure.update_yaxes(title=LABELS[name], row=place, col=1)
        if name == "sustained_tflops":
            figure.update_yaxes(rangemode="tozero", row=place, col=1)
    figure.update_xaxes(title="Time (s)", rangemode="tozero", row=len(names), col=1)
    panels = 170 * len(names)
    return figure.update_layout(
        height=110 + panels, margin=charts.CAMERA_MARGIN, legend=charts.LEGEND, hovermode="x unified"
    )


def _level(figure: go.Figure, names: list[str], name: str, value: float, colour: str, dash: str) -> None:
    """Add a level to compare a panel's curve with; none where it is not known."""
    if name in names and value == value:
        figure.add_hline(y=value, line={"color": colour, "width": 1.5, "dash": dash}, row=names.index(name) + 1, col=1)


def _name(row: dict) -> str:
    mask = "" if row["causal"] is None else f", {text.mask(row['causal'], row['window_size'])}"
    mode = text.MODE_WORDS.get(row["mode"], row["mode"])
    return (
        f"{row['implementation']} {mode}, seqlen {text.size(row['seqlen_q'])}, "
        f"head_dim {row['head_dim']}, {row['dtype']}{mask}, B{row['batch']} H{row['num_heads']}"
    )


def _at(number: float | None, unit: str, before: str) -> str:
    return "" if text.missing(number) else f"{before}{number:.0f}{unit}"
