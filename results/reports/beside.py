"""The speedups that a report prints beside those of another run, shape by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from results.records import Measurement, Status

Shape = tuple[str, int, int, str]  # dtype, head_dim, seqlen, mode
FAILED = {Status.OOM: "OOM", Status.OUT_OF_RESOURCES: "shared memory"}
MODES = {"fwd": "Forward", "bwd": "Backward", "fwd_bwd": "Forward and backward"}


def speedups_beside(
    printed: Sequence[Measurement], own: Sequence[Measurement], *, baseline: str, implementation: str
) -> str:
    """A Markdown table a mode: "printed / own" for every shape of the report, device time for the own run."""
    theirs = _printed(printed)
    ours = _derived(own, baseline, implementation)
    return "\n".join(_table(mode, theirs, ours) for mode in MODES)


def _printed(measurements: Sequence[Measurement]) -> dict[Shape, str]:
    cells = {}
    failures = {_shape(m): FAILED[m.status] for m in measurements if m.metric == "latency_ms" and m.status in FAILED}
    for m in measurements:
        if m.metric == "speedup" and m.case.seqlen_q and m.case.dtype:
            cells[_shape(m)] = f"{m.value:.1f}×" if m.value else failures.get(_shape(m), "—")
    return cells


def _derived(measurements: Sequence[Measurement], baseline: str, implementation: str) -> dict[Shape, str]:
    kernel = [m for m in measurements if m.metric == "latency_ms" and m.timing == "kernel"]
    base = {_shape(m): m.value for m in kernel if m.implementation == baseline}
    cells = {}
    for m in kernel:
        if m.implementation == implementation:
            before = base.get(_shape(m))
            cells[_shape(m)] = f"{before / m.value:.1f}×" if before and m.value else FAILED.get(m.status, str(m.status))
    return cells


def _table(mode: str, theirs: Mapping[Shape, str], ours: Mapping[Shape, str]) -> str:
    shapes = [shape for shape in theirs if shape[3] == mode]
    seqlens = sorted({shape[2] for shape in shapes})
    head = [MODES[mode], *map(str, seqlens)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for dtype, head_dim in sorted({shape[:2] for shape in shapes}):
        cells = [(dtype, head_dim, seqlen, mode) for seqlen in seqlens]
        texts = [f"{theirs.get(cell, '—')} / {ours.get(cell, 'not measured')}" for cell in cells]
        lines.append(f"| {dtype}, {head_dim} | {' | '.join(texts)} |")
    return "\n".join([*lines, ""])


def _shape(measurement: Measurement) -> Shape:
    case = measurement.case
    return (case.dtype or "", case.head_dim or 0, case.seqlen_q or 0, measurement.mode or "")
