"""The time that this process waits for a CPU core on a busy host.

Threads wait for each other at the end of every parallel loop. If other processes share the cores, the scheduler can
delay one thread by milliseconds: a call of 0.13 ms then takes 16 or 70 ms, in all three rounds or in none (two cores,
2026-11). Linux counts that time for each thread. Other reasons for a slow host are left to the comparison of runs
(results.compare.between_runs).
"""

import contextlib
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

BUSY = "busy host"
_THREADS = Path("/proc/self/task")
_LEAST = 0.01  # smallest share of a latency that is reported
_WAKING_MS = 0.1  # waiting time per sample that also occurs on an idle host, when threads wake up
_NS_PER_MS = 1e6


@contextlib.contextmanager
def watch() -> "Iterator[CoreWait]":
    """Measure the time that the threads which exist now wait for a core within the block."""
    with contextlib.ExitStack() as files:
        found = []
        for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():  # Linux only
            with contextlib.suppress(OSError):  # the thread has ended, or Linux does not count its time
                found.append(os.open(thread / "schedstat", os.O_RDONLY))
                files.callback(os.close, found[-1])
        yield CoreWait(found)


class CoreWait:
    """Waiting times of some threads; see Documentation/scheduler/sched-stats.rst of Linux."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = files
        self._before = self._waited_ms()

    def lap_ms(self) -> float:
        """Return the milliseconds that all threads together waited since the previous call."""
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
    """Return the share of the samples' median that may be waiting; None if it is negligible or not measured."""
    if not waits or len(waits) != len(samples):
        return None
    alone = statistics.median(max(0.0, s - w * (w > _WAKING_MS)) for s, w in zip(samples, waits, strict=True))
    share = 1.0 - alone / statistics.median(samples)
    return share if share >= _LEAST else None


def sentence(share: float) -> str:
    """Return the note of a latency, which results.compare.verdicts reads."""
    return f"Up to {100 * share:.1f} % of it is waiting for a core of a busy host."
