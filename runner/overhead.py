"""The time of a sweep by kind of work; every second belongs to one kind."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

SAMPLING = "sampling"  # all other kinds are overhead
ENERGY = "energy"
COMPILING = "compiling"
STARTS = "starts"  # starting workers: importing torch, warming up, measuring the peaks
TOTAL = "total"  # whole sweep from the start of its first worker; summed over several cards
WALL = "wall"  # sweep over several cards, from its start to its end


class Costs:
    """Seconds by kind of work; nested work is charged to the inner kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._kinds: list[str] = []
        self._since = clock()

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Charge the time of the block to a kind."""
        self._charge()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._charge()
            self._kinds.pop()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Charge some seconds of one kind to another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call."""
        self._charge()
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken

    def _charge(self) -> None:
        now = self._clock()
        if self._kinds:
            self._seconds[self._kinds[-1]] += now - self._since
        self._since = now


def sentence(costs: Mapping[str, float]) -> str:
    """Return a sentence on the time and the overhead of a sweep."""
    total_s, sampling = costs.get(TOTAL, 0.0), costs.get(SAMPLING, 0.0) + costs.get(ENERGY, 0.0)
    rest = {kind: seconds for kind, seconds in costs.items() if kind not in (SAMPLING, ENERGY, TOTAL, WALL)}
    rest["else"] = max(0.0, total_s - sampling - sum(rest.values()))
    parts = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in sorted(rest.items(), key=lambda item: -item[1]))
    share = f" ({100 * (total_s - sampling) / sampling:.0f} % of it)" if sampling else ""
    within = f" of the cards' time within {costs[WALL]:.1f} s" if WALL in costs else ""
    return (
        f"{total_s:.1f} s in all{within}, {sampling:.1f} s of it sampling; "
        f"beyond that {total_s - sampling:.1f} s{share}: {parts}."
    )
