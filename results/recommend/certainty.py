"""How sure the speedups of one implementation over the baseline are, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from results.compare.verdicts import BAND, judge, sampled_in_rounds
from results.recommend.doubt import doubts
from results.recommend.winners import Contender, contests, has_number, place_of
from results.slice import Filters, level_in
from results.store.database import Store

Pair = tuple[Contender, Contender]  # the baseline, and the implementation


@dataclass(frozen=True)
class SpeedupRange:
    """What a cell's speedup can be: an interval whose ends the truth passes with 5 % each, and what is impossible."""

    low: float | None  # None: no spread to judge by
    high: float | None
    void: str | None  # why one of the two times cannot be what it says

    @property
    def decided(self) -> bool:
        """Return whether it says faster, slower or within 2 %; without a spread the number stands for itself."""
        if self.low is None or self.high is None:
            return True
        beyond = self.low > 1 + BAND or self.high < 1 / (1 + BAND)
        return beyond or (self.low >= 1 / (1 + BAND) and self.high <= 1 + BAND)


def speedup_ranges(store: Store, filters: Filters, implementation: str) -> dict[tuple, SpeedupRange]:
    """Return by dtype and place on the axes of the level how sure the speedup of an implementation is."""
    level = level_in(filters)
    cells: dict[tuple, list[Pair]] = {}
    for contest in contests(store, replace(filters, implementation=(implementation,))):
        pair = contest.get(filters.baseline or ""), contest.get(implementation)
        place = place_of(contest, level)
        if place is not None and all(map(has_number, pair)):
            cells.setdefault(place, []).append(pair)
    void = doubts(store, (each.measurement for pairs in cells.values() for pair in pairs for each in pair))
    return {place: _range(pairs, void) for place, pairs in cells.items()}


def _range(pairs: Sequence[Pair], void: dict[str, str]) -> SpeedupRange:
    """Return the range of the mean over some shapes, as wide as if all erred the same way."""
    ids = (each.measurement.measurement_id for pair in pairs for each in pair)
    wrong = next((void[name] for name in ids if name in void), None)
    found = [_judged(*pair) for pair in pairs]
    if any(None in ends for ends in found):
        return SpeedupRange(None, None, wrong)
    low, high = (math.exp(fmean(map(math.log, ends))) for ends in zip(*found, strict=True))
    return SpeedupRange(low, high, wrong)


def _judged(baseline: Contender, other: Contender) -> tuple[float | None, float | None]:
    """Return the 90 % interval of the speedup; times of one process need no correction between processes."""
    same = baseline.protocol if baseline.protocol == other.protocol else None
    found = judge(baseline.measurement, other.measurement, protocol=same, paired=sampled_in_rounds(same))
    return found.low, found.high
