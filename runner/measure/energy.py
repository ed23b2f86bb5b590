"""Energy of a call, from the GPU's energy counter while only that call runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

LEAST_MS = 0.1  # with shorter calls the GPU waits for the host, and most of the energy is not the call's
_BATCH_MS = 5.0  # length of the calls between two readings of the counter
_LONGEST_WAIT_S = 0.3  # time limit for a step of the counter
_FRESH_S = 0.005  # maximum age of a counter step that the next measurement may start from


@dataclass(frozen=True)
class Energy:
    """Energy of one call, idle power included."""

    joules: float
    calls: int  # number of calls in the mean
    watts: float  # mean power meanwhile


class EnergyMeter:
    """Measures power between two steps of a counter in joules, which moves every 100 ms on an H200.

    Successive measurements share a step, which saves one wait. `mark` records the end of the queued work and returns a
    function that waits for it. A reading of the counter takes a millisecond, so one batch of calls is always queued
    behind the current one. Other NVML queries must not run meanwhile, because they delay the readings.
    """

    def __init__(
        self,
        counter_j: Callable[[], float | None],
        mark: Callable[[], Callable[[], object]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counter_j, self._mark, self._clock = counter_j, mark, clock
        self._step: tuple[float, float] | None = None  # time of the latest step of the counter, and its joules

    def measure(self, call: Callable[[], object], call_ms: float, least_s: float) -> Energy | None:
        """Return the mean power between two steps at least `least_s` apart, times the time of a call.

        None without a counter, or if it does not move within _LONGEST_WAIT_S beyond `least_s`.
        """
        batch = max(1, int(_BATCH_MS / max(call_ms, 1e-2)))
        start = self._clock()
        step = self._step if self._step and start - self._step[0] < _FRESH_S else None
        known, self._step = step[1] if step else self._counter_j(), None
        queued = self._queue(call, batch)
        ended: list[float] = []  # end time of each batch
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
        return Energy(watts * call_s, len(ended) * batch, watts)

    def _queue(self, call: Callable[[], object], count: int) -> Callable[[], object]:
        for _ in range(count):
            call()
        return self._mark()


def mark_on_gpu() -> Callable[[], object]:
    """Record an event on the current stream and return a function that waits for it."""
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
