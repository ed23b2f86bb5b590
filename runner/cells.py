"""Cells of a plan (case, implementation, mode), their order, and estimates of time and memory. No torch."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from results import gpus, levels
from results.levels.memory import law_from_json
from results.levels.tensors import DTYPE_BYTES
from results.records import CASE_FIELDS, Case, Measurement, Status
from runner.protocol import Protocol

if TYPE_CHECKING:
    from kernels import registry

# Sustained rates for estimates, deliberately low: (10^12 operations/s, 10^9 bytes/s, seconds per cell).
_RATES = {
    ("cuda", "bfloat16"): (80.0, 500.0, 0.15),
    ("cuda", "float16"): (80.0, 500.0, 0.15),
    ("cuda", "float32"): (8.0, 500.0, 0.15),
    ("cpu", "float32"): (0.05, 5.0, 0.02),
}
_RATES_ELSE = {"cuda": (0.5, 500.0, 0.15), "cpu": (0.01, 2.0, 0.02)}
_BANDWIDTH_SHARE = 0.4  # assumed share of the bandwidth on the datasheet, for known devices


@dataclass(frozen=True)
class Cell:
    """One planned combination with its estimates."""

    case: Case
    implementation: str
    mode: str
    reason: str | None = None  # why it cannot run here
    reason_status: str = Status.UNSUPPORTED
    seconds: float = 0.0  # estimated time of the whole cell
    memory_mb: float | None = None  # estimated peak

    @property
    def about_mode(self) -> levels.Mode:
        """Return the facts about the cell's mode at its level."""
        return levels.level_of(self.case).modes[self.mode]

    @property
    def words(self) -> str:
        """Return the cell in the words of a progress line."""
        return f"{self.implementation} {self.mode}, {levels.words(self.case)}"


def ordered_cells(
    cases: Iterable[Case],
    implementations: tuple[str, ...],
    modes: tuple[str, ...],
    seed: int,
    takes_part: Callable[[Case, str, str], bool] = lambda case, implementation, mode: True,
) -> list[Cell]:
    """Return every combination that takes part, by case, with implementations shuffled by the seed in each."""
    cells = []
    for number, case in enumerate(cases):
        names = list(implementations)
        random.Random(f"{seed}/{number}").shuffle(names)
        cells += [Cell(case, name, mode) for name in names for mode in modes if takes_part(case, name, mode)]
    return cells


def estimated_seconds(
    case: Case,
    mode: str,
    protocol: Protocol,
    timings: int,
    target: "registry.Device",
    matrix: bool,
    peak_share: float | None = None,
) -> float:
    """Return about how long a cell takes, including its check and sampling.

    `matrix`: the implementation stores the score matrix. `peak_share`: the assumed share of the 16-bit peak rate.
    """
    level = levels.level_of(case)
    rate, bandwidth, floor = _RATES.get((target.type, case.dtype or ""), _RATES_ELSE[target.type])
    if peak := gpus.find(target.name):
        bandwidth = _BANDWIDTH_SHARE * peak.bandwidth_gb_per_s
        rate = peak_share * peak.tensor_tflops if peak_share and case.dtype != "float32" else rate
    floor = max(floor, level.setup_s(case))
    passes = level.modes[mode].matrix_passes if matrix else 0
    traffic = (levels.bytes_moved(case, mode) or 0.0) + _matrix_bytes(case) * passes
    call = max((levels.flops(case, mode) or 0.0) / rate / 1e12, traffic / bandwidth / 1e9)
    return floor + protocol.seconds(call, timings)


def estimated_memory_mb(case: Case, mode: str, memory_law: Mapping[str, Any] | None) -> float | None:
    """Return the predicted peak in MiB by the memory law of an implementation; None if it declares none."""
    planned_as = levels.level_of(case).modes[mode].planned_as
    return levels.memory_mb(case, law_from_json(memory_law), planned_as or mode)


def without_number(run_id: str, cell: Cell, timings: Iterable[str], status: Status, note: str) -> list[Measurement]:
    """Return the rows of a cell with a status and a reason in place of numbers.

    There is one row for each timing, or one for each error if nothing is timed.
    """
    rows = [("latency_ms", timing) for timing in timings] or [(metric, None) for metric in cell.about_mode.errors]
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
    if cell.case.features is None:
        del record["features"]  # the other version of a run may not know the field
    return record | {name: getattr(cell, name) for name in _REST}


def cell_from_json(record: Mapping[str, Any]) -> Cell:
    """Return the cell of a dict that `cell_to_json` returned."""
    rest = {name: value for name, value in record.items() if name not in CASE_FIELDS}
    return Cell(case=Case(**{name: record.get(name) for name in CASE_FIELDS}), **rest)


def utc_now() -> str:
    """Return the current time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _matrix_bytes(case: Case) -> float:
    size = DTYPE_BYTES.get(case.dtype or "", 4) * (case.num_layers or 1)
    return float(case.batch or 1) * (case.num_heads or 1) * (case.seqlen_q or 1) * (case.seqlen_k or 1) * size
