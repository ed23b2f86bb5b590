"""FlashAttention-2 in Triton against PyTorch on an RTX 4060 Laptop: 56 cases of one head, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results.records import Measurement, Run, Status
from results.render.markdown import tables
from results.reports import claims
from results.reports.layout import (
    Claim,
    Grid,
    Labels,
    ReportError,
    Says,
    Section,
    low_and_high,
    parse_claims,
    parse_grid,
    read_count,
)
from results.reports.notes import Note, notes_of
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs, render_report

NAME = "fa2_rtx4060"
LABEL = "FlashAttention-2, RTX 4060 Laptop"
TITLE = "FlashAttention-2 Benchmark Results"
SOURCE = (
    "FlashAttention-2 Benchmark Results, RTX 4060 Laptop: a published answer to the flash_benchmarking task of "
    "Stanford CS336, assignment 2 (author and address unknown)"
)
IMPLEMENTATIONS = {"torch": "torch_naive", "triton_fa2": "triton_fa2"}

LONG, GAIN = 4096, 2.0  # seq_len and speedup from which the report prints a speedup in bold
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

_FACTS = re.compile(
    r"\*\*GPU\*\*: (?P<gpu>.+?) \((?P<memory>\d+)GB VRAM\)\s+\*\*Settings\*\*: batch_size=(?P<batch>\d+)"
)
_OOM = (
    "read as out of shared memory, not out of device memory, because observation 5 of the report says that "
    "d=128 with bf16 hits shared memory OOM"
)
_RUN_NOTES = (
    "The number of heads is not said. seq_len is read as the length of queries and keys, d as the head dimension of "
    "queries, keys and values. Whether a time is a mean or a median is not said."
)


def parse(text: str) -> list[tuple[Run, list[Measurement]]]:
    """Return the report's run and its numbers: 9 a row, and those of the observations.

    Raises ReportError if the text is not this report.
    """
    facts = _FACTS.search(text)
    found = [table for table in tables(text) if GRID.matches(table)]
    if not facts or len(found) != 1:
        raise ReportError(f"Not report {NAME}: it has a **GPU** and a **Settings** line and one table of results.")
    run = Run(
        run_id=f"published-{NAME}",
        source="published",
        report=NAME,
        title=TITLE,
        gpu_name=facts["gpu"],
        gpu_memory_mb=1024.0 * int(facts["memory"]),
        device_type="cuda",
        notes=_RUN_NOTES,
    )
    return [(run, [*parse_grid(GRID, found[0], run.run_id), *parse_claims(text, CLAIMS, run.run_id)])]


def notes(text: str) -> list[Note]:
    """Return what the report says besides its numbers."""
    return notes_of(text, [GRID])


def more_sections(printed: Runs, numbers: OwnNumbers) -> list[Section]:
    """Return the observations beside what an own run's numbers say to them."""
    rows = [m for _, measurements in printed for m in measurements]
    observed = ((f"Key Observations / {at}", words, answer(numbers)) for at, words, answer in _OBSERVATIONS)
    return [claims.with_sentences(claims.section(CLAIMS, rows, numbers), tuple(observed))]


def render(runs: Runs) -> str:
    """Return the report's table: as printed, or with the numbers of an own run of sweep fa2_speedup."""
    return render_report(runs, name=NAME, title=TITLE, source=SOURCE, grids=[GRID], implementations=IMPLEMENTATIONS)


def _row(labels: Labels) -> Says:
    seqlen, head_dim, dtype = labels
    return {"seqlen": read_count(seqlen), "head_dim": read_count(head_dim), "dtype": DTYPES.get(dtype)}


def _name(measurement: Measurement) -> Labels:
    case = measurement.case
    short = {long: short for short, long in DTYPES.items()}
    return str(case.seqlen_q), str(case.head_dim), short.get(case.dtype or "", "None")


def _time(implementation: str, mode: str) -> dict[str, Any]:
    says = {"implementation": implementation, "metric": "latency_ms", "mode": mode}
    return says | {"failed": Status.OUT_OF_RESOURCES, "why": _OOM}


def _speedup(mode: str) -> dict[str, Any]:
    says = {"implementation": "triton_fa2", "baseline": "torch", "metric": "speedup", "mode": mode}
    return says | {"why": "no ratio, because triton_fa2 has no time here", "bold": _is_bold}


def _is_bold(says: Says, ratio: float) -> bool:
    """Tell whether the report prints such a speedup in bold: long sequences that gain."""
    return says["seqlen"] >= LONG and ratio >= GAIN


_MODES: Sequence[tuple[str, str, str]] = (("fwd", "fwd", "Fwd"), ("bwd", "bwd", "Bwd"), ("e2e", "fwd_bwd", "E2E"))

GRID = Grid(
    section="Results Table",
    header=(
        *("seq_len", "d", "dtype"),
        *(f"{system} {word} (ms)" for system in ("PT", "TR") for word, _, _ in _MODES),
        *(f"{word} Speedup" for _, _, word in _MODES),
    ),
    row=_row,
    name=_name,
    order=(0, 1, 2),
    columns={
        **{f"PT {word} (ms)": _time("torch", mode) for word, mode, _ in _MODES},
        **{f"TR {word} (ms)": _time("triton_fa2", mode) for word, mode, _ in _MODES},
        **{f"{word} Speedup": _speedup(mode) for _, mode, word in _MODES},
    },
    says={"level": "op", "subject": "attention", "batch": 1, "causal": True},
    measured_by=("fa2_speedup", {"seqlen": "seqlen", "head_dim": "head_dim", "dtype": "dtype"}),
)

CLAIMS = (
    Claim(
        pattern=r"Triton forward is (?P<low>\d+)–(?P<high>\d+x) faster",
        origin="Key Observations / 1",
        says=_speedup("fwd"),
        figures=low_and_high("speedup"),
    ),
    Claim(
        pattern=r"At seq_len ≥ 4096, Triton backward achieves (?P<low>\d+)–(?P<high>\d+x) speedup",
        origin="Key Observations / 2",
        says={**_speedup("bwd"), "from_seqlen": 4096},
        figures=low_and_high("speedup"),
        note="at seq_len of 4096 and more",
    ),
    Claim(
        pattern=r"Up to (?P<speedup>\*\*[\d.]+x\*\*) at seq=8192, d=16, bf16",
        origin="Key Observations / 3",
        says={**_speedup("fwd_bwd"), "seqlen": 8192, "head_dim": 16, "dtype": "bfloat16", "batch": 1, "causal": True},
        figures={"speedup": {}},
    ),
)


def _bfloat16_over_float32(numbers: OwnNumbers) -> str | None:
    """Say in how many cases bfloat16 takes less time than float32, all modes and both systems."""
    faster = all_cases = 0
    for m in _latencies(numbers, set(numbers.implementations.values())):
        if m.case.dtype == "bfloat16":
            other = (replace(m.case, dtype="float32"), m.implementation, m.mode, m.metric)
            slow = numbers.found.get(other)
            if slow and slow.value:
                all_cases, faster = all_cases + 1, faster + (m.value < slow.value)
    return f"in {faster} of {all_cases} cases" if all_cases else None


def _shared_memory(numbers: OwnNumbers) -> str | None:
    """Say how the backward of bfloat16 at head_dim 128 ended."""
    ours = numbers.own("triton_fa2")
    found = [
        m.status
        for m in numbers.measurements
        if (m.implementation, m.mode, m.metric) == (ours, "bwd", "latency_ms")
        if (m.case.head_dim, m.case.dtype) == (128, "bfloat16")
    ]
    ran = sum(status is Status.OK for status in found)
    return f"{ran} of {len(found)} cases ran" if found else None


def _slower_backward(numbers: OwnNumbers) -> str | None:
    """Say in how many cases the backward is slower than PyTorch's."""
    base, pairs = numbers.own("torch"), []
    for m in _latencies(numbers, {numbers.own("triton_fa2")}):
        other = numbers.found.get((m.case, base, m.mode, m.metric))
        if m.mode == "bwd" and other and other.value:
            pairs.append(m.value > other.value)
    return f"in {sum(pairs)} of {len(pairs)} cases" if pairs else None


def _latencies(numbers: OwnNumbers, names: set[str]) -> list[Measurement]:
    return [m for m in numbers.measurements if m.implementation in names and m.metric == "latency_ms" and m.value]


_OBSERVATIONS = (
    ("4", "bf16 is generally faster than fp32", _bfloat16_over_float32),
    ("5", "d=128 with bf16 hits shared memory OOM in the backward", _shared_memory),
    ("6", "Backward is slower than PyTorch for some small-seq configs", _slower_backward),
)
