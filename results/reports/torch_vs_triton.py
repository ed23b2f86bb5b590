"""PyTorch against a Triton FlashAttention-2, long form with standard deviations: 24 cases, 48 rows."""

from __future__ import annotations

from typing import Any

from results.derive import geometric_mean
from results.records import Case, Measurement, Run
from results.render.markdown import tables
from results.reports import claims
from results.reports.layout import Grid, Labels, ReportError, Says, Section, SpreadColumn, parse_grid, read_count
from results.reports.notes import Note, notes_of
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs, render_report

NAME = "torch_vs_triton"
LABEL = "PyTorch against Triton FlashAttention-2"
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


def more_sections(printed: Runs, numbers: OwnNumbers) -> list[Section]:
    """Return what the report's text claims beside what an own run's numbers say to it."""
    bare = Section("Claims", "", ("Where",), ("Figure",), (None,), ())
    sentences = (
        ("text / 1", "Triton's forward is consistently faster than PyTorch's", _forward(numbers)),
        ("text / 2", "the gap widens at larger d_model and sequence length", _gap(numbers)),
        ("text / 3", "Backward is not implemented on triton", _backward(numbers)),
    )
    return [claims.with_sentences(bare, sentences)]


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
    measured_by=("torch_vs_triton", {"seqlen": "seqlen", "head_dim": "head_dim", "dtype": "dtype"}),
)


def _ratios(numbers: OwnNumbers, mode: str) -> dict[Case, float]:
    """Return PyTorch over Triton by own case, in the median."""
    ours, base, found = numbers.own("triton_fa2"), numbers.own("torch"), {}
    for m in numbers.measurements:
        if (m.implementation, m.mode, m.metric) == (ours, mode, "latency_ms") and m.value:
            other = numbers.found.get((m.case, base, mode, "latency_ms"))
            if other and other.value:
                found[m.case] = other.value / m.value
    return found


def _forward(numbers: OwnNumbers) -> str | None:
    found = _ratios(numbers, "fwd")
    faster = sum(ratio > 1 for ratio in found.values())
    return (
        f"in {faster} of {len(found)} cases, {min(found.values()):.2f} to {max(found.values()):.2f}x" if found else None
    )


def _gap(numbers: OwnNumbers) -> str | None:
    """Say the geometric mean of the speedup at the shortest and the longest sequence, and at either end of head_dim."""
    found = _ratios(numbers, "fwd")
    parts = []
    for field, word in (("head_dim", "d_model"), ("seqlen_q", "seq_len")):
        sizes = sorted({getattr(case, field) for case in found})
        if len(sizes) > 1:
            ends = [
                geometric_mean(r for case, r in found.items() if getattr(case, field) == at)
                for at in sizes[:: len(sizes) - 1]
            ]
            parts.append(f"{word} {sizes[0]} to {sizes[-1]}: {ends[0]:.2f} to {ends[1]:.2f}x")
    return ", ".join(parts) or None


def _backward(numbers: OwnNumbers) -> str | None:
    found = _ratios(numbers, "bwd")
    return (
        f"{len(found)} backward cases ran, {min(found.values()):.2f} to {max(found.values()):.2f}x" if found else None
    )
