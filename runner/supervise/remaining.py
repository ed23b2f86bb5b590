"""Estimates of the remaining time of a sweep, learned from its measurements: compiling, fixed work, sampling. No torch.

The estimates of a plan assume one low rate for all implementations. The real rate depends on the implementation and the
shape, so a plain ratio of elapsed to estimated time would vary severalfold during a sweep.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from results.records import Measurement
from runner.cells import Cell
from runner.protocol import Protocol

_Kind = tuple[str, str, str | None, int | None]  # implementation, mode, dtype, head_dim: compiled once for each
_MOST_EXCESS = 2.0  # limit of a finished case over the fit; a larger excess counts as a single event
_MOST_SAMPLING = 2.0  # limit of the factor on sampling, whose number and length of samples are known
_FITS = 4
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
        self._call_s = {cell: self._call_of(max(0.0, cell.seconds - self._floor_s)) for cell in planned}
        self._measured_s: dict[Cell, float] = {}  # seconds of one call
        # Estimated and measured seconds of a call for the latest two sizes, by implementation, mode and dtype.
        self._points: dict[tuple[str, str, str | None], list[tuple[float, float]]] = {}
        self._finished: list[tuple[float, float, float]] = []  # by case: seconds without compiling, fixed, sampling
        self._compiled: dict[_Kind, None] = {}
        self._compiling_s = 0.0

    def measured(self, cell: Cell, measurement: Measurement) -> None:
        """Update the growth of an implementation's calls from a latency; the two largest sizes count."""
        planned = self._call_s.get(cell)
        if measurement.metric != "latency_ms" or not measurement.value or not planned:
            return
        self._measured_s[cell] = measurement.value / 1e3
        points = [point for point in self._points.get(_series(cell), []) if point[0] != planned]
        self._points[_series(cell)] = sorted([*points, (planned, self._measured_s[cell])])[-2:]

    def finished(self, cells: Sequence[Cell], seconds: float, compiling_s: float) -> None:
        """Update the fit with the time of a finished case and the part of it spent compiling."""
        estimated = len(cells) * self._floor_s, sum(map(self._sampling_s, cells))
        self._finished.append((max(0.0, seconds - compiling_s), *estimated))
        self._compiled |= dict.fromkeys(map(_kind, cells))
        self._compiling_s += compiling_s

    def knows(self, left: Iterable[Cell]) -> bool:
        """Return whether all implementations of these cells were measured, so that the estimate is not just a bound."""
        measured = {cell.implementation for cell in self._measured_s}
        return bool(self._finished) and all(cell.implementation in measured for cell in left)

    def seconds(self, left: Sequence[Cell]) -> float:
        """Return the estimated time of these cells."""
        fixed, sampling = self._fit()
        new = len(set(map(_kind, left)) - set(self._compiled))
        compiling = new * self._compiling_s / len(self._compiled) if self._compiled else 0.0
        return compiling + sum(fixed * self._floor_s + sampling * self._sampling_s(cell) for cell in left)

    def _sampling_s(self, cell: Cell) -> float:
        """Return the estimated time of a cell's check and samples, from its own latency or its series."""
        if cell in self._measured_s:
            return self._sampled(self._measured_s[cell])
        planned, points = self._call_s.get(cell, 0.0), self._points.get(_series(cell))
        return self._sampled(_grown(points, planned) if points else planned * self._usual())

    def _usual(self) -> float:
        """Return the median ratio of measured to estimated calls, at most 1 because slow calls are mostly overhead."""
        return min(1.0, statistics.median(y / x for (*_, (x, y)) in self._points.values())) if self._points else 1.0

    def _call_of(self, seconds: float) -> float:
        """Return the length of a call whose check and samples take that long: the inverse of `Protocol.seconds`."""
        low, high = 0.0, max(seconds, 1e-9)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._sampled(middle) < seconds else (low, middle)
        return high

    def _fit(self) -> tuple[float, float]:
        """Return the ratios of measured to estimated time for fixed work and sampling, which start at about 1.

        The time of a case counts at most _MOST_EXCESS times the fit.
        """
        rows = self._finished
        found = _least_squares(rows)
        for _ in range(_FITS if len(rows) > 2 else 0):
            most = [_MOST_EXCESS * (found[0] * fixed + found[1] * sampling) for _, fixed, sampling in rows]
            found = _least_squares([(min(row[0], limit), *row[1:]) for row, limit in zip(rows, most, strict=True)])
        return found


def _grown(points: Sequence[tuple[float, float]], planned: float) -> float:
    """Return the length of a call, extrapolated from one or two smaller ones, each estimated and measured.

    With one point, an excess over the plan counts as fixed; two points give the slope. The growth is at most
    proportional to the last point.
    """
    x, y = points[-1]
    in_proportion = y / x
    slope = min(1.0, in_proportion)
    if len(points) == 2:
        (x_before, y_before) = points[0]
        slope = min(in_proportion, max(0.1 * in_proportion, (y - y_before) / (x - x_before)))
    return max(min(y, in_proportion * planned), y + slope * (planned - x))


def _series(cell: Cell) -> tuple[str, str, str | None]:
    return cell.implementation, cell.mode, cell.case.dtype


def _least_squares(rows: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Return x and y, not negative, of seconds = x fixed + y sampling, each row weighted by its size."""
    xx = yy = x_seen = y_seen = 1.0  # a prior of one second each, measured as one second
    xy = 0.0
    for seconds, fixed, sampling in rows:
        weight = 1.0 / max(fixed + sampling, 1e-9)
        xx, yy, xy = xx + weight * fixed**2, yy + weight * sampling**2, xy + weight * fixed * sampling
        x_seen, y_seen = x_seen + weight * fixed * seconds, y_seen + weight * sampling * seconds
    determinant = xx * yy - xy * xy
    y = min(_MOST_SAMPLING, max(0.0, (y_seen * xx - x_seen * xy) / determinant))
    return max(0.0, (x_seen - y * xy) / xx), y


def _kind(cell: Cell) -> _Kind:
    return cell.implementation, cell.mode, cell.case.dtype, cell.case.head_dim
