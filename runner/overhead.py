"""Where a sweep's time goes: every second belongs to one kind of work."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

SAMPLING = "sampling"  # what the numbers are made of; all else is the price for them
ENERGY = "energy"
COMPILING = "compiling"
STARTS = "starts"  # of workers: importing torch, warming up, measuring the peaks
TOTAL = "total"  # of a whole sweep, from its first worker's start; of several cards the sum
WALL = "wall"  # of a sweep over several cards, from its start to its end


class Costs:
    """Seconds by kind of work; of work within work the inner kind is charged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: Counter[str] = Counter()
        self._kinds: list[str] = []
        self._since = clock()

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Charge what happens within the block to a kind."""
        self._charge()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._charge()
            self._kinds.pop()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Charge a part of one kind to another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds since the last time this was asked."""
        self._charge()
        taken, self._seconds = dict(self._seconds), Counter()
        return taken

    def _charge(self) -> None:
        now = self._clock()
        if self._kinds:
            self._seconds[self._kinds[-1]] += now - self._since
        self._since = now


def beyond_sampling(costs: Mapping[str, float]) -> float | None:
    """Return seconds spent on anything but samples over those spent on samples; None if there were none."""
    sampling = costs.get(SAMPLING, 0.0) + costs.get(ENERGY, 0.0)
    return (costs.get(TOTAL, 0.0) - sampling) / sampling if sampling else None


def sentence(costs: Mapping[str, float]) -> str:
    """Return what a sweep cost beyond its sampling, for a reader."""
    total_s, sampling = costs.get(TOTAL, 0.0), costs.get(SAMPLING, 0.0) + costs.get(ENERGY, 0.0)
    rest = {kind: seconds for kind, seconds in costs.items() if kind not in (SAMPLING, ENERGY, TOTAL, WALL)}
    rest["else"] = max(0.0, total_s - sampling - sum(rest.values()))
    parts = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in sorted(rest.items(), key=lambda item: -item[1]))
    beyond = beyond_sampling(costs)
    share = "" if beyond is None else f" ({100 * beyond:.0f} % of it)"
    within = f" of the cards' time within {costs[WALL]:.1f} s" if WALL in costs else ""
    return (
        f"{total_s:.1f} s in all{within}, {sampling:.1f} s of it sampling; "
        f"beyond that {total_s - sampling:.1f} s{share}: {parts}."
    )
