"""What the note of a measurement says that is no field of it. Standard library and records only."""

from __future__ import annotations

import re

from results.records import Measurement

_CLOCK = re.compile(r"SM clock of (\d+) MHz")  # as journals noted it that have no clock of their own
_WAITING = re.compile(r"Up to ([\d.]+) % of it is waiting for a core")  # as runner.waiting notes it
_MOST_WAITING = 0.999


def sm_clock_mhz(measurement: Measurement) -> int | None:
    """The SM clock of a measurement; journals from before it was a field only noted a clock that was held back."""
    if measurement.sm_clock_mhz:
        return round(measurement.sm_clock_mhz)
    noted = _CLOCK.search(measurement.note or "")
    return int(noted[1]) if noted else None


def waiting(measurement: Measurement) -> float:
    """How much of a latency may be waiting for a core; 0 where nothing was noted."""
    noted = _WAITING.search(measurement.note or "")
    return min(_MOST_WAITING, float(noted[1]) / 100) if noted else 0.0
