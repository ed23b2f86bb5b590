"""Joules of a call, from the GPU's own energy counter while nothing but that call runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_BATCH_MS = 2.0  # of calls between two looks at the counter
_MOST_BATCH = 200
_LONGEST_WAIT_S = 0.3  # for the counter to move twice


@dataclass(frozen=True)
class Energy:
    """Of one call; the power that the GPU draws anyway is in it."""

    joules: float
    calls: int  # that it is the mean of


def energy_of_call(
    call: Callable[[], object],
    counter_j: Callable[[], float | None],
    *,
    synchronize: Callable[[], object],
    call_ms: float,
    least_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy | None:
    """Mean power between two steps of the counter at least `least_s` apart, times the time of a call.

    The counter moves in steps of tens of milliseconds: only between two steps is it known what was used when. None if
    there is no counter, or if it does not move twice within a third of a second beyond `least_s`.
    """
    batch = max(1, min(_MOST_BATCH, int(_BATCH_MS / max(call_ms, 1e-3))))
    synchronize()
    start, known, done = clock(), counter_j(), 0
    steps: list[tuple[float, float]] = []
    while known is not None and clock() - start < least_s + _LONGEST_WAIT_S:
        for _ in range(batch):
            call()
        synchronize()
        done += batch
        now, joules = clock(), counter_j()
        if joules is not None and joules != known:
            known = joules
            steps.append((now, joules))
            if now - steps[0][0] >= least_s:
                watts = (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
                return Energy(watts * (now - start) / done, done)
    return None
