"""Joules of a call, from the GPU's own energy counter while nothing but that call runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

LEAST_MS = 0.1  # shorter calls leave the GPU waiting for the host, whose energy it would be
_BATCH_MS = 5.0  # of calls between two looks at the counter
_LONGEST_WAIT_S = 0.3  # for the counter to move
_FRESH_S = 0.005  # how old a step of the counter may be to count as the beginning of the next call's stretch


@dataclass(frozen=True)
class Energy:
    """Of one call; the power that the GPU draws anyway is in it."""

    joules: float
    calls: int  # that it is the mean of


class EnergyMeter:
    """Times the steps of a counter in joules: on an H200 it moves every 100 ms, and only between two steps is it known
    what was used when. Calls measured right after each other share a step, which saves the wait for one.

    `mark` marks the end of what is queued on the device and answers with a way to wait for that. A look at the counter
    takes a millisecond, so one batch of calls is always queued behind the one that is waited for; nobody else may ask
    NVML meanwhile, or looks take longer than a batch and the device waits.
    """

    def __init__(
        self,
        counter_j: Callable[[], float | None],
        mark: Callable[[], Callable[[], object]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counter_j, self._mark, self._clock = counter_j, mark, clock
        self._step: tuple[float, float] | None = None  # when the counter moved, and to how many joules

    def measure(self, call: Callable[[], object], call_ms: float, least_s: float) -> Energy | None:
        """Return mean power between two steps at least `least_s` apart, times the time of a call.

        None if there is no counter, or if it does not move within a third of a second beyond `least_s`.
        """
        batch = max(1, int(_BATCH_MS / max(call_ms, 1e-2)))
        start = self._clock()
        step = self._step if self._step and start - self._step[0] < _FRESH_S else None
        known, self._step = step[1] if step else self._counter_j(), None
        queued = self._queue(call, batch)
        ended: list[float] = []  # when each batch was done
        while known is not None and self._clock() - start < least_s + _LONGEST_WAIT_S:
            before, queued = queued, self._queue(call, batch)
            before()
            ended.append(self._clock())
            now, joules = self._clock(), self._counter_j()
            if joules is None or joules == known:
                continue
            known, step = joules, step or (now, joules)
            if now - step[0] >= least_s and len(ended) > 1:
                self._step = (now, joules)
                break
        queued()
        if self._step is None:
            return None
        watts = (known - step[1]) / (self._step[0] - step[0])
        call_s = (ended[-1] - ended[0]) / (len(ended) - 1) / batch
        return Energy(watts * call_s, len(ended) * batch)

    def _queue(self, call: Callable[[], object], count: int) -> Callable[[], object]:
        for _ in range(count):
            call()
        return self._mark()


def mark_on_gpu() -> Callable[[], object]:
    """Return an event behind what is queued on the current stream."""
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
