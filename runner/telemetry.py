"""Watches the GPU while it is measured, so that a number taken under throttling or in company says so."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from runner import nvml

_PERIOD_S = 0.05
_KEPT = 20_000  # readings: about a quarter of an hour, more than a case takes


@dataclass(frozen=True)
class Findings:
    """What there is to say about some stretches of time; nothing if nothing was wrong or nobody watched."""

    flags: tuple[str, ...] = ()
    note: str | None = None


class Telemetry:
    """A thread that reads the GPU twenty times a second; without NVML it is silent."""

    def __init__(self, uuid: str | None) -> None:
        self._gpu = nvml.find(uuid) if uuid else None
        self._readings: deque[tuple[float, nvml.Reading]] = deque(maxlen=_KEPT)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        if self._gpu:
            self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def findings(self, windows: Iterable[tuple[float, float]]) -> Findings:
        """About those stretches of time.monotonic(), each widened by one reading on either side."""
        spans = [(start - 2 * _PERIOD_S, end + 2 * _PERIOD_S) for start, end in windows]
        seen = [reading for at, reading in list(self._readings) if any(low <= at <= high for low, high in spans)]
        return judge(seen)

    def _watch(self) -> None:
        while not self._end.wait(_PERIOD_S):
            self._readings.append((time.monotonic(), self._gpu.reading()))


def judge(readings: list[nvml.Reading]) -> Findings:
    """What readings say: throttled, and by what; other processes on the GPU."""
    flags, notes = [], []
    bits = 0
    for reading in readings:
        bits |= reading.throttle
    if bits:
        flags.append("throttled")
        reasons = ", ".join(name for bit, name in nvml.THROTTLE_REASONS.items() if bits & bit)
        clocks = sorted(reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz)
        clock = f" at an SM clock of {clocks[len(clocks) // 2]} MHz" if clocks else ""
        notes.append(f"The GPU was held back by its {reasons}{clock}.")
    others = max((reading.others for reading in readings if reading.others), default=0)
    if others:
        flags.append("shared GPU")
        notes.append(f"{others} other process{'es were' if others > 1 else ' was'} on the GPU.")
    return Findings(tuple(flags), " ".join(notes) or None)
