"""PyTorch against a Triton FlashAttention-2, long form with standard deviations: 24 cases, 48 rows."""

from __future__ import annotations

from typing import Any

from results.records import Measurement, Run
from results.render.markdown import tables
from results.reports.layout import Grid, Labels, ReportError, Says, SpreadColumn, parse_grid, read_count
from results.reports.notes import Note, notes_of
from results.reports.rendering import Runs, render_report

NAME = "torch_vs_triton"
TITLE = "PyTorch against Triton FlashAttention-2, mean and standard deviation"
SOURCE = (
    "Table of impl, mean and std: a published answer to the flash_benchmarking task of Stanford CS336, assignment 2 "
    "(author, GPU and address unknown)"
)
IMPLEMENTATIONS = {"torch": "torch_naive", "triton_fa2": "triton_fa2"}

_RUN_NOTES = (
    "The report names no GPU, no versions and no number of heads. d_model is read as head_dim, because the "
    "assignment that the table answers has one head. Its text says that backward is not implemented on triton, "
    "although the table has backward times of triton_fa2; both are kept as printed."
)


def parse(text: str) -> list[tuple[Run, list[Measurement]]]:
    """Return the report's run and its numbers, 3 a row, each a mean with its standard deviation.

    Raises ReportError if the text is not this report.
    """
    found = [table for table in tables(text) if GRID.matches(table)]
    if len(found) != 1:
        raise ReportError(f"Not report {NAME}: it has one table with the columns {', '.join(GRID.header)}.")
    run = Run(
        run_id=f"published-{NAME}",
        source="published",
        report=NAME,
        title=TITLE,
        notes=_RUN_NOTES,
    )
    return [(run, parse_grid(GRID, found[0], run.run_id))]


def notes(text: str) -> list[Note]:
    """Return what the report says besides its numbers."""
    return notes_of(text, [GRID])


def render(runs: Runs) -> str:
    """Return the report's table: as printed, or with the numbers of an own run of sweep torch_vs_triton."""
    return render_report(runs, name=NAME, title=TITLE, source=SOURCE, grids=[GRID], implementations=IMPLEMENTATIONS)


def _row(labels: Labels) -> Says:
    implementation, dtype, seqlen, head_dim, batch, causal = labels
    return {
        "implementation": implementation,
        "dtype": None if dtype == "None" else dtype,
        "seqlen": read_count(seqlen),
        "head_dim": read_count(head_dim),
        "batch": read_count(batch),
        "causal": {"True": True, "False": False}.get(causal),
    }


def _name(measurement: Measurement) -> Labels:
    case = measurement.case
    fields = (case.dtype, case.seqlen_q, case.head_dim, case.batch, case.causal)
    return measurement.implementation, *map(str, fields)


def _columns() -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for word, mode in (("forward", "fwd"), ("backward", "bwd"), ("e2e", "fwd_bwd")):
        std = f"{word}_ms_std"
        columns[f"{word}_ms_mean"] = {"metric": "latency_ms", "mode": mode, "unit": "ms", "std": std}
        columns[std] = SpreadColumn()
    return columns


GRID = Grid(
    section="",
    header=("impl", "dtype", "seq_len", "d_model", "batch", "is_causal", *_columns()),
    row=_row,
    name=_name,
    order=(1, 2, 3, 4, 5, 0),
    columns=_columns(),
    says={"level": "op", "subject": "attention"},
)
