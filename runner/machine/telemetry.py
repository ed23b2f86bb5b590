"""Reads the GPU during measurements and flags numbers taken under throttling or next to other processes."""

import statistics
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from runner.machine import nvml
from runner.measure import stopwatch

THROTTLED = "throttled"
# Notes of cells without a regular reading.
TOO_SHORT = "Its {:.0f} ms of timing are too short for regular readings; the clock was read once at the end of a round."
NOT_WATCHED = "No reading of the clock fell into its {:.0f} ms of timing, so nothing says whether it was throttled."
_PERIOD_S = 0.05
_FULL_CLOCK = 0.95  # share of the highest SM clock above which the power limit does not count
_HELD_CLOCK = 0.90  # share of the highest SM clock below which a cell is throttled, even if NVML names no reason
_KEPT = 20_000  # readings: about a quarter of an hour, longer than a case takes
_DISORDER_S = 1.0  # readings of the two threads may be out of order by this time
_STEADY_S, _STEADY_READINGS = 0.3, 3  # time and readings at full clock after which the clock is steady


@dataclass(frozen=True)
class Findings:
    """Flags and notes about some periods of time; empty if nothing was wrong or there are no readings."""

    flags: tuple[str, ...] = ()
    note: str | None = None
    sm_clock_mhz: float | None = None  # the median

    @property
    def throttled(self) -> bool:
        """Return whether the GPU was throttled."""
        return THROTTLED in self.flags


class Telemetry:
    """A thread that reads the GPU twenty times per second; it does nothing without NVML."""

    def __init__(self, uuid: str | None, *, companions: int = 0) -> None:
        self.gpu = nvml.find(uuid) if uuid else None  # None without NVML
        self._companions = companions  # other processes of the same sweep on the GPU, which take turns with this one
        self._readings: deque[tuple[float, nvml.Reading]] = deque(maxlen=_KEPT)
        self._end = threading.Event()
        self._asking = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        if self.gpu:
            self._thread.start()

    def stop(self) -> None:
        """Stop the readings."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def paused(self) -> AbstractContextManager[object]:
        """Pause the readings within the block, since concurrent NVML queries delay each other."""
        return self._asking

    def look(self, since: float) -> None:
        """Read the clock unless there is a reading since then, for timing shorter than the interval of readings."""
        now = time.monotonic()
        if self.gpu and not self.between(since, now):
            self._readings.append((now, self.gpu.clock_reading()))

    def settle(self, device: str) -> None:
        """Wait up to half a second for the GPU's full clock, or only briefly if the clock is steady or not known."""
        now = self.gpu.clock_reading() if self.gpu else None
        stopwatch.settle(
            device,
            lambda: self.gpu.clock_reading().sm_clock_mhz,
            now.max_sm_clock_mhz if now else None,
            steady=self._is_steady(),
        )

    def between(self, start: float, end: float) -> list[tuple[float, nvml.Reading]]:
        """Return the readings of a period of time.monotonic(), with their times."""
        return [(at, reading) for at, reading in self._since(start) if start <= at <= end]

    def findings(self, windows: Iterable[tuple[float, float]]) -> Findings:
        """Return the findings about the readings within these periods of time.monotonic()."""
        spans = list(windows)
        known = self._since(min(low for low, _ in spans)) if spans else []
        within = [reading for at, reading in known if any(low <= at <= high for low, high in spans)]
        found = judge(within, self._companions)
        if not self.gpu or not spans or any(reading.power_w is not None for reading in within):
            return found
        span_ms = 1e3 * sum(end - start for start, end in spans)
        missing = (TOO_SHORT if within else NOT_WATCHED).format(span_ms)
        return replace(found, note=" ".join(filter(None, [found.note, missing])))

    def _since(self, start: float) -> list[tuple[float, nvml.Reading]]:
        """Return the readings since shortly before a time."""
        every = list(self._readings)
        first = bisect_left(every, start - _DISORDER_S, key=lambda reading: reading[0])
        return every[first:]

    def _is_steady(self) -> bool:
        now = time.monotonic()
        readings = [reading for _, reading in self.between(now - _STEADY_S, now)]
        clocks = [reading.sm_clock_mhz or 0 for reading in readings]
        top = _top_clock(readings)
        return bool(top) and len(clocks) >= _STEADY_READINGS and min(clocks) >= stopwatch.SETTLED * top

    def _watch(self) -> None:
        while not self._end.wait(_PERIOD_S):
            with self._asking:
                self._readings.append((time.monotonic(), self.gpu.reading()))


def judge(readings: list[nvml.Reading], companions: int = 0) -> Findings:
    """Return the findings of readings: throttling with its reasons, and processes beyond the companions."""
    flags, notes = [], []
    bits, clock, top = _throttling(readings), _median_clock(readings), _top_clock(readings)
    if bits:
        flags.append(THROTTLED)
        reasons = ", ".join(name for bit, name in nvml.THROTTLE_REASONS.items() if bits & bit)
        notes.append(f"The GPU was held back by its {reasons}{f' to an SM clock of {clock} MHz' if clock else ''}.")
    elif clock and top and clock < _HELD_CLOCK * top:
        flags.append(THROTTLED)
        notes.append(f"The GPU was held back to an SM clock of {clock} MHz of {top}; NVML names no reason.")
    others = max((reading.others for reading in readings if reading.others), default=0) - companions
    if others > 0:
        flags.append("shared GPU")
        notes.append(f"{others} other process{'es were' if others > 1 else ' was'} on the GPU.")
    return Findings(tuple(flags), " ".join(notes) or None, clock)


def _throttling(readings: list[nvml.Reading]) -> int:
    """Return the throttle reasons as bits. The power limit alone does not count at full clock.

    An H200 reports it at its full 1980 MHz when heavy and light kernels alternate (2026-11).
    """
    bits = 0
    for reading in readings:
        bits |= reading.throttle
    clock, top = _median_clock(readings), _top_clock(readings)
    if bits == nvml.POWER_LIMIT and clock and top and clock >= _FULL_CLOCK * top:
        return 0
    return bits


def _top_clock(readings: list[nvml.Reading]) -> int | None:
    return next((reading.max_sm_clock_mhz for reading in readings if reading.max_sm_clock_mhz), None)


def _median_clock(readings: list[nvml.Reading]) -> int | None:
    clocks = [reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz]
    return statistics.median_high(clocks) if clocks else None
