"""Everything known of one cell or one run: numbers, samples, environment, the command that repeats it."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import charts, text
from pages.ui.draw.cells import NUMBERS
from pages.ui.shell.data import ask
from results import derive
from results.files import cell_files, library
from results.implementations import facts_of
from results.levels.real_shapes import shape_of
from results.query import bandwidth, pages
from results.query.declared import declared
from results.slice import Filters, level_in

COLUMNS = ("implementation", "status", "latency_ms", "p20", "p80", "n", "speedup", "tflops", "percent_of_peak", "note")
RUN_FACTS = (
    *("source", "title", "created", "gpu_name", "compute_capability", "sm_count", "gpu_memory_mb", "power_limit_w"),
    *("driver", "cuda", "cudnn", "torch", "triton", "python", "os", "cpu", "git_commit", "git_dirty", "kernel_hash"),
    *("tf32", "protocol", "seed", "report", "empty_launch_ms", "against", "notes"),
)


def cell_detail(chosen: Filters, place: tuple) -> None:
    """Draw everything known of one cell: each implementation's numbers, samples, the run and how to repeat it."""
    dtype, length, other = place
    level = level_in(chosen)
    rows = ask(pages.cell, chosen, dtype, length, other)
    st.subheader(f"{level.columns.label} {length}, {level.rows.label} {other}, {dtype}")
    if rows.empty:
        st.caption("Nothing was measured here in this slice.")
        return
    derived = rows.to_dict("records")
    flops = [None if text.missing(r["flops"]) else r["flops"] for r in derived]
    rate = [
        derive.tflops(f, None if text.missing(r["latency_ms"]) else r["latency_ms"])
        for f, r in zip(flops, derived, strict=True)
    ]
    said = ask(declared, level_in(chosen).name)
    facts = [facts_of(row["implementation"], said) for row in derived]
    peaks = [
        derive.peak_tflops(
            row["gpu_name"],
            fact.multiplies(row["dtype"], row.get("head_dim"), row["gpu_name"]),
            tf32=fact.tf32 or _tf32(row),
        )
        for fact, row in zip(facts, derived, strict=True)
    ]
    table = rows.assign(
        status=[text.status(status) for status in rows["status"]],
        note=rows["note"].fillna(""),
        tflops=rate,
        percent_of_peak=[derive.percent_of_peak(r, p) for r, p in zip(rate, peaks, strict=True)],
    )
    shown = [*COLUMNS]
    if level.name == "decode":  # which the memory's bandwidth bounds
        table = table.assign(**pd.DataFrame([bandwidth.of_call(row) for row in derived], index=table.index))
        shown[-1:-1] = ["tb_per_s", "percent_of_copy"]
    st.dataframe(
        table[shown].dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Numbers of the chosen cell",
        column_config=NUMBERS,
    )
    _models_with_shape(derived)
    _empty_launches(rows)
    _samples(rows)
    _files(derived)
    _environment(rows)
    st.caption(f"TFLOP/s: {level.flops_source}")


def run_facts(run: pd.Series) -> None:
    """Draw where and when a run was taken, and the command that repeats it."""
    known = {name: str(run[name]) for name in RUN_FACTS if name in run and not text.missing(run[name])}
    st.dataframe(
        pd.DataFrame({"fact": known.keys(), "value": known.values()}), hide_index=True, alt="Environment of the run"
    )
    if not text.missing(run.get("command")):
        st.code(run["command"], language=None, wrap_lines=True)
    else:
        st.caption("The source gives no command that repeats this run.")


def _models_with_shape(rows: list[dict]) -> None:
    """Name the models whose attention has a shape of the cell, with the address of their configuration."""
    for shape in dict.fromkeys(filter(None, map(shape_of, rows))):
        source = f"[configuration]({shape.source})" if shape.source.startswith("https:") else shape.source
        st.caption(f"Shape of {text.plain(shape.name)}. {source}")


def _empty_launches(rows: pd.DataFrame) -> None:
    """Say what each kernel time contains besides the work, where the runs measured it."""
    known = rows[(rows["timing"] == "kernel") & rows["empty_launch_ms"].notna()]["empty_launch_ms"]
    if not known.empty:
        span = " to ".join(dict.fromkeys(f"{1e3 * ms:.1f}" for ms in (known.min(), known.max())))
        st.caption(f"Each kernel time contains {span} µs that an empty kernel takes between the same events.")


def _samples(rows: pd.DataFrame) -> None:
    figure = go.Figure()
    palette = charts.colours(rows["implementation"].unique().tolist())
    for row in rows.to_dict("records"):
        samples = row["samples"]
        if samples is not None and not text.missing(str(samples)) and hasattr(samples, "__len__") and len(samples):
            figure.add_box(
                x=list(samples),
                name=row["implementation"],
                boxpoints="all",
                jitter=0.4,
                pointpos=0,
                marker_size=4,
                marker_color=palette[row["implementation"]],
            )
    if not figure.data:
        st.caption("The source holds no single samples of this cell.")
        return
    figure.update_layout(height=60 + 40 * len(figure.data), margin=charts.MARGIN, showlegend=False, xaxis_title="ms")
    st.plotly_chart(
        figure, config=charts.BARE, key="cell_samples", alt="Every sample of the chosen cell by implementation"
    )


def _files(rows: list[dict]) -> None:
    """Offer what runs recorded of the cell beside its numbers: traces and histories of memory."""
    for row in rows:
        folder = library.find(row["run_id"])
        for kind, opener in cell_files.OPENED_BY.items() if folder else ():
            path = cell_files.path_of(folder.path, kind, row, row["implementation"], row["mode"])
            if path.is_file():
                label, opened = f"{text.plain(row['implementation'])}: {kind}", f"Opens in {opener}."
                st.download_button(label, path.read_bytes(), path.name, key=f"file_{path.name}", help=opened)


def _environment(rows: pd.DataFrame) -> None:
    for run_id, facts in rows.groupby("run_id"):
        first = facts.iloc[0]
        with st.expander(f"Run {run_id}: environment and command", icon=":material/terminal:"):
            run_facts(first)


def _tf32(row: dict) -> bool | None:
    return None if text.missing(row["tf32"]) else bool(row["tf32"])
