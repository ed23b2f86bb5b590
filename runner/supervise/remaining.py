"""Estimates of the remaining time of a sweep, learned from its measurements: compiling, fixed work, sampling. No torch.

The estimates of a plan assume one low rate for all implementations. The real rate depends on the implementation and the
shape, so a plain ratio of elapsed to estimated time would vary severalfold during a sweep.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from results.records import Measurement
from runner.cells import Cell
from runner.protocol import Protocol

_Kind = tuple[str, str, str | None, int | None]  # implementation, mode, dtype, head_dim: compiled once for each
_BISECTIONS = 50


@dataclass(frozen=True)
class Expected:
    """Estimate of the remaining time of a sweep at the start of a case."""

    case_s: float = 0.0
    after_s: float = 0.0  # all cases after this one
    bound: bool = False  # whether this is a lower bound, because an implementation was not measured yet

    def left(self, spent_s: float) -> tuple[float | None, bool]:
        """Return the seconds left after `spent_s` in the case, and whether they are a lower bound.

        The rest of a case that takes longer than expected is not known; None if it is the last case.
        """
        if spent_s < self.case_s:
            return self.case_s - spent_s + self.after_s, self.bound
        return self.after_s or None, True


class Remaining:
    """Estimates for the unfinished cells."""

    def __init__(self, cells: Iterable[Cell], protocol: Protocol, timings: int) -> None:
        self._sampled = partial(protocol.seconds, timings=timings)
        planned = [cell for cell in cells if not cell.reason]
        # Fixed time of a cell. Cells of the interpreter, which are not timed, have no estimate and are skipped.
        self._floor_s = min((cell.seconds for cell in planned if cell.seconds), default=0.0)
        call_of = cache(self._call_of)  # many cells have the same estimate
        self._call_s = {cell: call_of(max(0.0, cell.seconds - self._floor_s)) for cell in planned}
        self._measured_s: dict[Cell, float] = {}  # seconds of one call
        # Estimated and measured seconds of the largest call so far, by implementation, mode and dtype.
        self._largest: dict[tuple[str, str, str | None], tuple[float, float]] = {}
        self._fixed_s: list[float] = []  # by finished case: seconds of a cell besides samples and compiling
        self._compiled: dict[_Kind, None] = {}
        self._compiling_s = 0.0

    def measured(self, cell: Cell, measurement: Measurement) -> None:
        """Learn the rate of an implementation's calls from a latency; the largest size counts."""
        planned = self._call_s.get(cell)
        if measurement.metric != "latency_ms" or not measurement.value or not planned:
            return
        self._measured_s[cell] = measurement.value / 1e3
        known = self._largest.get(_series(cell), (0.0, 0.0))
        self._largest[_series(cell)] = max(known, (planned, self._measured_s[cell]))

    def finished(self, cells: Sequence[Cell], seconds: float, compiling_s: float) -> None:
        """Learn from the time of a finished case and the part of it spent compiling."""
        besides = seconds - compiling_s - sum(map(self._sampling_s, cells))
        self._fixed_s.append(max(0.0, besides) / len(cells))
        self._compiled |= dict.fromkeys(map(_kind, cells))
        self._compiling_s += compiling_s

    def knows(self, left: Iterable[Cell]) -> bool:
        """Return whether all implementations of these cells were measured, so that the estimate is not just a bound."""
        measured = {cell.implementation for cell in self._measured_s}
        return bool(self._fixed_s) and all(cell.implementation in measured for cell in left)

    def seconds(self, left: Sequence[Cell]) -> float:
        """Return the estimated time of these cells."""
        fixed_s = statistics.median(self._fixed_s) if self._fixed_s else self._floor_s
        new = len(set(map(_kind, left)) - set(self._compiled))
        compiling = new * self._compiling_s / len(self._compiled) if self._compiled else 0.0
        return compiling + sum(fixed_s + self._sampling_s(cell) for cell in left)

    def _sampling_s(self, cell: Cell) -> float:
        """Return the estimated time of a cell's check and samples, from its own latency or its series.

        Calls are in proportion to the largest one; of larger calls, an excess over the plan counts as fixed.
        """
        if cell in self._measured_s:
            return self._sampled(self._measured_s[cell])
        planned, known = self._call_s.get(cell, 0.0), self._largest.get(_series(cell))
        if known is None:
            return self._sampled(planned * self._usual())
        largest, took = known
        rate = took / largest
        return self._sampled(rate * planned if planned < largest else took + min(1.0, rate) * (planned - largest))

    def _usual(self) -> float:
        """Return the median ratio of measured to estimated calls, at most 1 because slow calls are mostly overhead."""
        return min(1.0, statistics.median(y / x for x, y in self._largest.values())) if self._largest else 1.0

    def _call_of(self, seconds: float) -> float:
        """Return the length of a call whose check and samples take that long: the inverse of `Protocol.seconds`."""
        low, high = 0.0, max(seconds, 1e-9)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._sampled(middle) < seconds else (low, middle)
        return high


def _series(cell: Cell) -> tuple[str, str, str | None]:
    return cell.implementation, cell.mode, cell.case.dtype


def _kind(cell: Cell) -> _Kind:
    return cell.implementation, cell.mode, cell.case.dtype, cell.case.head_dim
