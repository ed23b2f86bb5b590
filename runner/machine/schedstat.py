"""How long this process waited for a core: on a busy host a call's threads wait for each other to get one.

Two threads that share their cores with others meet at the end of every parallel loop, and the scheduler lets the one
that lost its core wait for milliseconds: a call of 0.13 ms then takes 16 or 70 ms, in all three rounds or in none
(two cores, 2026-11). Linux counts that time for each thread. What it does not count, a host that is slow for other
reasons, is left to the comparison of runs (results.compare.between_runs).
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

BUSY = "busy host"
_THREADS = Path("/proc/self/task")
_LEAST = 0.01  # of a latency, below which there is nothing to say
_WAKING_MS = 0.1  # that threads may wait in a sample on a quiet host too: some microseconds each time they are woken
_NS_PER_MS = 1e6


@contextlib.contextmanager
def watch() -> Iterator[CoreWait]:
    """Watch the time that the threads which exist now wait for a core while the block runs."""
    with contextlib.ExitStack() as files:
        found = []
        for thread in _threads():
            with contextlib.suppress(OSError):  # it ended, or the kernel does not count
                found.append(os.open(thread / "schedstat", os.O_RDONLY))
                files.callback(os.close, found[-1])
        yield CoreWait(found)


class CoreWait:
    """What Linux says of some threads; see Documentation/scheduler/sched-stats.rst of its sources."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = files
        self._before = self._waited_ms()

    def lap_ms(self) -> float:
        """Return how many milliseconds they waited since the last look, all of them together."""
        now = self._waited_ms()
        waited, self._before = now - self._before, now
        return max(0.0, waited)

    def _waited_ms(self) -> float:
        waited = 0
        for file in self._files:
            with contextlib.suppress(OSError):  # the thread has ended
                waited += int(os.pread(file, 64, 0).split()[1])
        return waited / _NS_PER_MS


def waiting_share(samples: Sequence[float], waits: Sequence[float]) -> float | None:
    """Return how much of the median of the samples may be waiting; None if it is next to nothing or was not watched."""
    if not waits or len(waits) != len(samples):
        return None
    alone = statistics.median(max(0.0, s - w * (w > _WAKING_MS)) for s, w in zip(samples, waits, strict=True))
    share = 1.0 - alone / statistics.median(samples)
    return share if share >= _LEAST else None


def sentence(share: float) -> str:
    """Return what is noted with a latency, as results.compare.verdicts reads it."""
    return f"Up to {100 * share:.1f} % of it is waiting for a core of a busy host."


def _threads() -> list[Path]:
    try:
        return list(_THREADS.iterdir())
    except OSError:  # not Linux
        return []
