"""FlashAttention-2 in Triton against PyTorch on an RTX 4060 Laptop: 56 cases of one head, forward and backward."""

from __future__ import annotations

from typing import Any

from results.records import Measurement, Status
from results.reports.claims import Claim, Pick, share, span_by_dtype
from results.reports.layout import Facts, Grid, Labels, read_count
from results.reports.own import OwnNumbers

NAME = "fa2_rtx4060"
LABEL = "FlashAttention-2, RTX 4060 Laptop"
TITLE = "FlashAttention-2 Benchmark Results"
SOURCE = (
    "FlashAttention-2 Benchmark Results, RTX 4060 Laptop: a published answer to the flash_benchmarking task of "
    "Stanford CS336, assignment 2 (author and address unknown)"
)
IMPLEMENTATIONS = {"torch": "torch_naive", "triton_fa2": "triton_fa2"}

LONG, GAIN = 4096, 2.0  # the report prints a speedup in bold from this seq_len and this speedup
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_MODES = {"fwd": ("fwd", "Fwd"), "bwd": ("bwd", "Bwd"), "e2e": ("fwd_bwd", "E2E")}
_LABELS = ("seq_len", "d", "dtype")


def _row(labels: Labels) -> Facts:
    seqlen, head_dim, dtype = labels
    return {"seqlen": read_count(seqlen), "head_dim": read_count(head_dim), "dtype": DTYPES.get(dtype)}


def _name(measurement: Measurement) -> Labels:
    case = measurement.case
    short = {long: short for short, long in DTYPES.items()}
    return str(case.seqlen_q), str(case.head_dim), short.get(case.dtype or "", "None")


def _is_bold(facts: Facts, ratio: float) -> bool:
    return facts["seqlen"] >= LONG and ratio >= GAIN


_COLUMNS: dict[str, dict[str, Any]] = {
    **{
        f"{prefix} {word} (ms)": {"implementation": implementation, "metric": "latency_ms", "mode": mode}
        for prefix, implementation in (("PT", "torch"), ("TR", "triton_fa2"))
        for word, (mode, _) in _MODES.items()
    },
    **{
        f"{title} Speedup": {
            "implementation": "triton_fa2",
            "baseline": "torch",
            "metric": "speedup",
            "mode": mode,
            "bold": _is_bold,
        }
        for mode, title in _MODES.values()
    },
}
GRIDS = (
    Grid(
        section="Results Table",
        header=(*_LABELS, *_COLUMNS),
        row=_row,
        name=_name,
        order=(0, 1, 2),
        columns=_COLUMNS,
        facts={"level": "op", "subject": "attention", "batch": 1, "causal": True},
        measured_by=("fa2_speedup", {"seqlen": "seqlen", "head_dim": "head_dim", "dtype": "dtype"}),
    ),
)


def _shared_memory(numbers: OwnNumbers) -> str | None:
    """Return how many backward passes of bfloat16 at head_dim 128 ran."""
    ours = numbers.own("triton_fa2")
    found = [
        m.status
        for m in numbers.measurements
        if (m.implementation, m.mode, m.metric) == (ours, "bwd", "latency_ms")
        if (m.case.head_dim, m.case.dtype) == (128, "bfloat16")
    ]
    return f"{found.count(Status.OK)} of {len(found)} cases ran" if found else None


def _in_bfloat16(implementation: str) -> Pick:
    """Return the times in bfloat16, with the same implementation in float32 as the baseline."""
    case, other = {"dtype": "bfloat16"}, {"dtype": "float32"}
    return Pick(implementation, implementation, case=case, baseline_case=other)


_OURS = ("speedup", "triton_fa2", "torch")
_BEST_CELL = {"head_dim": 16, "dtype": "bfloat16", "batch": 1, "causal": True}
CLAIMS = (
    Claim("Key Observations / 1", span_by_dtype(*_OURS, mode="fwd")),
    Claim("Key Observations / 2", span_by_dtype(*_OURS, mode="bwd", seqlen=(4096, float("inf")))),
    Claim("Key Observations / 3", span_by_dtype(*_OURS, mode="fwd_bwd", seqlen=(8192, 8192), case=_BEST_CELL)),
    Claim(
        "Key Observations / 4",
        share(*map(_in_bfloat16, IMPLEMENTATIONS)),
        "bf16 is generally faster than fp32",
    ),
    Claim("Key Observations / 5", _shared_memory, "d=128 with bf16 hits shared memory OOM in the backward"),
    Claim(
        "Key Observations / 6",
        share(Pick("triton_fa2", "torch", mode="bwd"), slower=True),
        "Backward is slower than PyTorch for some small-seq configs",
    ),
)
