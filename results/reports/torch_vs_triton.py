"""PyTorch against a Triton FlashAttention-2, long form with standard deviations: 24 cases, 48 rows."""

from __future__ import annotations

from typing import Any

from results.derive import geometric_mean
from results.records import Measurement
from results.reports.claims import Claim, Pick, share, span_words
from results.reports.layout import Facts, Grid, Labels, SpreadColumn, read_count
from results.reports.own import OwnNumbers

NAME = "torch_vs_triton"
LABEL = "PyTorch against Triton FlashAttention-2"
TITLE = "PyTorch against Triton FlashAttention-2, mean and standard deviation"
SOURCE = (
    "Table of impl, mean and std: a published answer to the flash_benchmarking task of Stanford CS336, assignment 2 "
    "(author, GPU and address unknown)"
)
IMPLEMENTATIONS = {"torch": "torch_naive", "triton_fa2": "triton_fa2"}


def _row(labels: Labels) -> Facts:
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
        columns[f"{word}_ms_mean"] = {"metric": "latency_ms", "mode": mode, "std": std}
        columns[std] = SpreadColumn()
    return columns


GRIDS = (
    Grid(
        section="",
        header=("impl", "dtype", "seq_len", "d_model", "batch", "is_causal", *_columns()),
        row=_row,
        name=_name,
        order=(1, 2, 3, 4, 5, 0),
        columns=_columns(),
        facts={"level": "op", "subject": "attention"},
        measured_by=("torch_vs_triton", {"seqlen": "seqlen", "head_dim": "head_dim", "dtype": "dtype"}),
    ),
)
_FORWARD, _BACKWARD = (Pick("triton_fa2", "torch", mode=mode) for mode in ("fwd", "bwd"))


def _gap(numbers: OwnNumbers) -> str | None:
    """Return the mean speedups at the smallest and the largest d_model, and at the shortest and longest sequence."""
    found, parts = _FORWARD.ratios(numbers), []
    for name, word in (("head_dim", "d_model"), ("seqlen_q", "seq_len")):
        sizes = sorted({getattr(case, name) for case, _ in found})
        if len(sizes) > 1:
            first, last = (
                geometric_mean(ratio for case, ratio in found if getattr(case, name) == size)
                for size in (sizes[0], sizes[-1])
            )
            parts.append(f"{word} {sizes[0]} to {sizes[-1]}: {first:.2f} to {last:.2f}x")
    return ", ".join(parts) or None


def _backward(numbers: OwnNumbers) -> str | None:
    ratios = [ratio for _, ratio in _BACKWARD.ratios(numbers)]
    return f"{len(ratios)} backward cases ran, {span_words(ratios)}" if ratios else None


CLAIMS = (
    Claim("text / 1", share(_FORWARD, with_span=True), "Triton's forward is consistently faster than PyTorch's"),
    Claim("text / 2", _gap, "the gap widens at larger d_model and sequence length"),
    Claim("text / 3", _backward, "Backward is not implemented on triton"),
)
