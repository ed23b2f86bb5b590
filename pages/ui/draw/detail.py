"""One cell or one run in detail: numbers, samples, environment, and the command that repeats it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, colours, maps, messages, tables, text
from pages.ui.run import one_shape
from pages.ui.shell.data import ask
from results import derive
from results.files import cell_files, library
from results.implementations import facts_of
from results.levels import Level
from results.levels.real_shapes import shape_of
from results.query import bandwidth, pages
from results.query.declared import of_rows
from results.recommend import winners
from results.slice import Filters, level_in

COLUMNS = ("implementation", "status", "latency_ms", "p20", "p80", "n", "speedup", "tflops", "percent_of_peak", "note")
RUN_FACTS = text.WORDS["run_facts"]
_HERE = Path(__file__).parent
_head = st.components.v2.component(
    "attnbench.cell_head",
    html='<div class="head"><h3 tabindex="-1"></h3><button type="button" aria-label="Close">✕</button></div>',
    js=(_HERE / "cell_panel.js").read_text(encoding="utf-8"),
    css=(_HERE / "cell_head.css").read_text(encoding="utf-8"),
)


def cell_detail(chosen: Filters, place: tuple) -> None:
    """Draw one cell in detail: each implementation's numbers and samples, the run, and how to repeat it."""
    dtype, length, other = place
    rows = ask(pages.cell, chosen, dtype, length, other)
    if rows.empty:
        st.caption("Nothing was measured here in this selection.")
        return
    _answer(chosen, place)
    _bars(rows, chosen)
    _models_with_shape(rows.to_dict("records"))
    level = level_in(chosen)
    for case in rows.drop_duplicates("shape").to_dict("records"):
        several = f" at {case['shape']}" if rows["shape"].nunique() > 1 else ""
        one_shape.show(f"Run this shape again{several}", case, mode=case["mode"])
    messages.folded("Every number", "cell_numbers", lambda: _numbers(rows, level))
    messages.folded("Every sample", "cell_samples", lambda: _samples(rows), ":material/scatter_plot:")
    _files(rows.to_dict("records"))
    for run_id, facts in rows.groupby("run_id"):
        with st.expander(f"Run {run_id}: environment and command", icon=":material/terminal:"):
            run_facts(facts.iloc[0])


def _answer(chosen: Filters, place: tuple) -> None:
    """Name the fastest implementation of the cell, its lead, and findings against its number."""
    level, (dtype, length, other) = level_in(chosen), place
    sizes: dict[str, Any] = {"dtype": dtype, level.columns.column: length, level.rows.column: other}
    said: dict[str, Any] = {name: (value,) for name, value in sizes.items() if value is not None}
    only = replace(chosen, **said)
    for row in ask(winners.winners, only).to_dict("records"):
        if text.missing(row["dtype"]) != (dtype is None) or text.missing(row["winner"]):
            continue
        rival = "".join(f"\n\n{text.plain(each)}." for each in list(row["rivals"])[:1])
        st.markdown(f"**{text.plain(row['winner'])}** is the fastest: {text.ms(row['latency_ms'])}.{rival}")
        if not text.missing(row["void"]):
            st.warning(text.plain(row["void"]), icon=":material/report:")


def _bars(rows: pd.DataFrame, chosen: Filters) -> None:
    """Draw medians with p20 to p80 as bars on a log axis, and the speedup; failures in words."""
    palette = colours.palette(rows["implementation"].unique().tolist())
    ends = [*rows["latency_ms"], *rows["p20"], *rows["p80"]]
    columns = tables.declared("cell", {"bar": tables.log_axis(ends, 0.3)}, baseline=chosen.baseline)
    if rows["shape"].nunique() == 1:
        del columns["shape"]
    drawn, said = rows.to_dict("records"), ask(of_rows, level_in(chosen).name)
    for row in drawn:
        precision = facts_of(row["implementation"], said, row["run_id"]).precision
        row |= {"bar": latency_bar(row, palette), "marked": precision and precision.upper()}
    tables.show_table(drawn, columns, "Latency of every implementation for the chosen shape")


def latency_bar(row: dict, palette: dict[str, str]) -> tables.Bar | str:
    """Return the latency of a row as a bar with p20 to p80 if they are known, or the reason for none in words."""
    if text.missing(row["latency_ms"]):
        return text.status(row["status"])
    spread = row.get("p20"), row.get("p80")
    spread = None if any(map(text.missing, spread)) else spread
    hover, time = f"p20 {text.ms(spread[0])}, p80 {text.ms(spread[1])}" if spread else "no spread", row["latency_ms"]
    return tables.Bar(time, text.ms(time), palette[row["implementation"]], spread, hover=hover)


def _numbers(rows: pd.DataFrame, level: Level) -> None:
    """Draw every number of the cell, with rates and their share of the peak."""
    table, shown = _with_rates(rows, level), [*COLUMNS]
    if level.memory_bound:
        found = [bandwidth.of_call(row) for row in rows.to_dict("records")]
        table = table.assign(**pd.DataFrame(found, index=table.index))
        shown[-1:-1] = ["tb_per_s", "percent_of_copy"]
    columns = cells.NUMBERS | tables.declared("cell_numbers", flops=level.flops_source)
    shown = table[shown].dropna(axis="columns", how="all")
    tables.grid(shown, "Numbers of the chosen shape", columns)
    empty = rows[(rows["timing"] == "kernel") & rows["empty_launch_ms"].notna()]["empty_launch_ms"]
    if not empty.empty:
        span = " to ".join(dict.fromkeys(f"{1e3 * ms:.1f}" for ms in (empty.min(), empty.max())))
        st.caption(f"Each kernel time contains {span} µs that an empty kernel takes between the same events.")


def _with_rates(rows: pd.DataFrame, level: Level) -> pd.DataFrame:
    """Return the rows with TFLOP/s, the share of the data-sheet peak, and statuses in words."""
    said, rates, peaks = ask(of_rows, level.name), [], []
    for row in rows.to_dict("records"):
        fact = facts_of(row["implementation"], said, row["run_id"])
        tf32 = fact.tf32 or (None if text.missing(row["tf32"]) else bool(row["tf32"]))
        precision = fact.multiplies(row["dtype"], row.get("head_dim"), row["gpu_name"])
        known = [None if text.missing(row[name]) else row[name] for name in ("flops", "latency_ms")]
        rates.append(derive.tflops(*known))
        peaks.append(derive.peak_tflops(row["gpu_name"], precision, tf32=tf32))
    return rows.assign(
        status=[text.status(status) for status in rows["status"]],
        note=rows["note"].fillna(""),
        tflops=rates,
        percent_of_peak=[derive.percent_of_peak(rate, peak) for rate, peak in zip(rates, peaks, strict=True)],
    )


def run_facts(run: pd.Series) -> None:
    """Draw the environment of a run, and the command that repeats it."""
    known = {
        label: _fact(name, run[name])
        for name, label in RUN_FACTS.items()
        if name in run and not text.missing(run[name])
    }
    facts = pd.DataFrame({"fact": known.keys(), "value": known.values()})
    st.dataframe(facts, hide_index=True, alt="Environment of the run")
    if not text.missing(run.get("command")):
        st.code(run["command"], language=None, wrap_lines=True)
    else:
        st.caption("The source gives no command that repeats this run.")


def _models_with_shape(rows: list[dict]) -> None:
    """Name the models whose attention has a shape of the cell, with the address of their configuration."""
    for shape in dict.fromkeys(filter(None, map(shape_of, rows))):
        st.caption(text.model_shape(shape))


def _samples(rows: pd.DataFrame) -> None:
    """Draw every sample on a logarithmic axis, implementations in the order of the bars."""
    palette = colours.palette(rows["implementation"].unique().tolist())
    found = [
        charts.Series(row["implementation"], list(row["samples"]), [], palette[row["implementation"]], box=True)
        for row in rows.to_dict("records")
        if hasattr(row["samples"], "__len__") and len(row["samples"])
    ]
    if not found:
        st.caption("The source holds no single samples of this shape.")
        return
    x = {"type": "log", "dtick": "D2"} | charts.titled("latency (ms)")
    chart = charts.Chart(found, x, {"autorange": "reversed"}, 90 + 40 * len(found), legend=False)
    alt = "Every sample of the chosen shape by implementation"
    st.plotly_chart(charts.figure(chart), config={"displayModeBar": False}, key="cell_samples_chart", alt=alt)


def _files(rows: list[dict]) -> None:
    """Offer the files that runs recorded for the cell: traces and histories of memory."""
    for row in rows:
        folder = library.find(row["run_id"])
        for kind, opener in cell_files.OPENED_BY.items() if folder else ():
            path = cell_files.path_of(folder.path, kind, row, row["implementation"], row["mode"])
            if path.is_file():
                label, opened = f"{text.plain(row['implementation'])}: {kind}", f"Opens in {opener}."
                st.download_button(label, path.read_bytes(), path.name, key=f"file_{path.name}", help=opened)


def _fact(name: str, value: Any) -> str:
    """Write a fact of a run: without meaningless digits, and yes or no for truth values."""
    if name == "source":
        return text.SOURCE_WORDS[value]
    if name == "created":
        return str(value)[: len("2026-11-22 18:45")]
    if name == "gpu_memory_mb":
        return text.mib(value)
    if name in ("git_dirty", "tf32"):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def around(chosen: Filters, table: Sequence[dict]) -> Iterator[None]:
    """Draw the map of the `with` block, and the chosen cell in detail next to it, below a list of all cells."""
    level = level_in(chosen)
    sides = st.container(horizontal=True, key="map_and_cell")
    with sides.container(key="map_side"):
        yield
    if maps.chosen_cell():
        with sides.container(key="cell_panel", border=True):
            place = maps.pick(level, table)
            if place is None:
                return
            title = maps.label(level, place)
            _head(data={"title": title}, key="cell_head", on_close_change=maps.drop)
            cell_detail(chosen, place)
