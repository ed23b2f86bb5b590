"""What a sweep plans: cells of case, implementation and mode, their order, and what each may cost. No torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from typing import Protocol as Interface

from results import gpus, levels
from results.levels.memory import law_from_json
from results.levels.tensors import DTYPE_BYTES
from results.records import CASE_FIELDS, Case, Measurement, Status
from runner.protocol import Protocol

MODES_WITH_MEMORY = ("fwd", "fwd_bwd", "decode", "prefill", "train")
BACKWARD_MODES = ("bwd", "fwd_bwd", "train", "step")
_ERRORS = {  # of a pass, where nothing is timed
    "fwd": ("error_out",),
    "decode": ("error_out",),
    "bwd": ("error_dq", "error_dk", "error_dv"),
}

# Sustained rates assumed for estimates only, on purpose low: (10^12 operations/s, 10^9 bytes/s, seconds a cell).
_RATES = {
    ("cuda", "bfloat16"): (80.0, 500.0, 0.15),
    ("cuda", "float16"): (80.0, 500.0, 0.15),
    ("cuda", "float32"): (8.0, 500.0, 0.15),
    ("cpu", "float32"): (0.05, 5.0, 0.02),
}
_RATES_ELSE = {"cuda": (0.5, 500.0, 0.15), "cpu": (0.01, 2.0, 0.02)}
_BANDWIDTH_SHARE = 0.4  # of the datasheet's, where the device has one
_MODEL_SHARE = 0.4  # of the datasheet's 16-bit rate: whole models are large matrix products
# To build and check a model, and to compile its layers with torch.compile: 28 cells of generation took 33 s on an H200,
# eight of training 25 s beyond the start of the process; eight compiled ones 55 s (2026-11).
_MODEL_FLOOR_S, _MODEL_COMPILED_S = 2.0, 4.0
_MATRIX_PASSES = {
    "fwd": 6,
    "decode": 6,
    "prefill": 6,
    "bwd": 8,
    "fwd_bwd": 14,
    "train": 14,
    "step": 0,
}  # reads and writes of a score matrix kept in memory


@dataclass(frozen=True)
class Cell:
    """One planned combination and what is known of it beforehand."""

    case: Case
    implementation: str
    mode: str
    reason: str | None = None  # why it cannot run here
    reason_status: str = Status.UNSUPPORTED
    seconds: float = 0.0  # estimate of the whole cell
    memory_mb: float | None = None  # estimate of the peak

    @property
    def words(self) -> str:
        """Return the cell as a progress line says it."""
        return f"{self.implementation} {self.mode}, {levels.words(self.case)}"


def ordered_cells(
    cases: Iterable[Case],
    implementations: tuple[str, ...],
    modes: tuple[str, ...],
    seed: int,
    takes_part: Callable[[Case, str, str], bool] = lambda case, implementation, mode: True,
) -> list[Cell]:
    """Return every combination that takes part: cases in the sweep's order, implementations shuffled anew within each
    by the seed."""
    cells = []
    for number, case in enumerate(cases):
        names = list(implementations)
        random.Random(f"{seed}/{number}").shuffle(names)
        cells += [Cell(case, name, mode) for name in names for mode in modes if takes_part(case, name, mode)]
    return cells


class Target(Interface):
    """Where a cell would run, as far as its time depends on it."""

    type: str  # cuda or cpu
    name: str


def estimated_seconds(case: Case, mode: str, protocol: Protocol, timings: int, target: Target, matrix: bool) -> float:
    """Return about how long a cell takes, its check and sampling included; `matrix`: it keeps the score matrix."""
    rate, bandwidth, floor = _RATES.get((target.type, case.dtype or ""), _RATES_ELSE[target.type])
    if peak := gpus.find(target.name):
        bandwidth = _BANDWIDTH_SHARE * peak.bandwidth_gb_per_s
    if case.level == "model":
        floor = _MODEL_FLOOR_S + (_MODEL_COMPILED_S if case.compiled else 0.0)
        rate = _MODEL_SHARE * peak.tensor_tflops if peak and case.dtype != "float32" else rate
    traffic = (levels.bytes_moved(case, mode) or 0.0) + (_matrix_bytes(case) * _MATRIX_PASSES[mode] if matrix else 0)
    call = max((levels.flops(case, mode) or 0.0) / rate / 1e12, traffic / bandwidth / 1e9)
    least = protocol.least_of_round(call * 1e3) * protocol.rounds
    calls = max(least, min(protocol.most, protocol.cap_ms / 1e3 / max(call, 1e-5)))
    extra = protocol.trace_s if timings else 0.0
    return floor + call * (4 + calls * timings) + extra


def estimated_memory_mb(case: Case, mode: str, memory_law: Mapping[str, Any] | None) -> float | None:
    """Return about the peak in MiB by what an implementation declares; None if it declares nothing."""
    return levels.memory_mb(case, law_from_json(memory_law), "fwd_bwd" if mode == "bwd" else mode)


def without_number(run_id: str, cell: Cell, timings: Iterable[str], status: Status, note: str) -> list[Measurement]:
    """Return the rows that a cell must have, without a number: the status and the reason, once for each timing; or once
    for each error where nothing is timed."""
    if timings := tuple(timings):
        rows = [("latency_ms", timing) for timing in timings]
    else:
        rows = [(metric, None) for metric in _ERRORS.get(cell.mode, _ERRORS["bwd"])]
    return [
        Measurement(
            run_id=run_id,
            case=cell.case,
            implementation=cell.implementation,
            mode=cell.mode,
            timing=timing,
            metric=metric,
            status=status,
            note=note,
            time=utc_now(),
        )
        for metric, timing in rows
    ]


_REST = ("implementation", "mode", "reason", "reason_status", "seconds", "memory_mb")


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """Return a flat dict; `cell_from_json` is its inverse."""
    record = asdict(cell.case)
    return record | {name: getattr(cell, name) for name in _REST}


def cell_from_json(record: Mapping[str, Any]) -> Cell:
    """Return the cell of a plan's line."""
    rest = {name: value for name, value in record.items() if name not in CASE_FIELDS}
    return Cell(case=Case(**{name: record[name] for name in CASE_FIELDS}), **rest)


def utc_now() -> str:
    """Return the time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _matrix_bytes(case: Case) -> float:
    size = DTYPE_BYTES.get(case.dtype or "", 4) * (case.num_layers or 1)
    return float(case.batch or 1) * (case.num_heads or 1) * (case.seqlen_q or 1) * (case.seqlen_k or 1) * size
