"""Winners: the fastest correct implementation of a case or a cell, and the implementations that tie with it.

All implementations of a case come from one run. A rival ties if the 90 % interval of the ratio overlaps the band of
2 %. Beyond the band it is behind, and certainly so only if the verdict on it (results.compare.verdicts) is SLOWER. A
tie whose interval includes a difference of 10 % decides nothing. A source that prints one number has no spread, so
there a rival ties only if its number is within the band. TF32 and FP8 variants cannot win: their precision is not the
dtype of the column.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from results.compare.verdicts import BAND, Judgement, Verdict, judge, sampled_in_rounds
from results.derive import geometric_mean
from results.records import Measurement, Status

JUDGED_WITHIN = 1.5  # on a GPU, a rival this many times slower loses without a test
UNDECIDED = 0.10  # a tie whose interval includes this difference decides nothing


@dataclass(frozen=True)
class Contender:
    """One implementation in a case."""

    measurement: Measurement
    speedup: float | None  # over the baseline, in the same run
    source: str
    protocol: str | None
    mask: str
    shape: str
    precision: str | None = None  # precision of the products if it is not the case's dtype


class Standing(StrEnum):
    """The certainty that the fastest implementation of a shape is the fastest."""

    AHEAD = "ahead"
    NOT_CERTAIN = "ahead, not certain"
    TIE = "equally fast within 2 %"
    CANNOT_DECIDE = "cannot be told apart"


@dataclass(frozen=True)
class Rival:
    """An implementation compared with the winner. The ratio is its time over the winner's."""

    name: str
    ratio: float
    low: float | None  # 90 % interval of the ratio: each end with 95 % certainty
    high: float | None
    ties: bool
    certain: bool = True  # the result is certain

    @property
    def standing(self) -> Standing:
        """Return the certainty that the winner is ahead of this implementation."""
        if not self.ties:
            return Standing.AHEAD if self.certain else Standing.NOT_CERTAIN
        if self.low is None:
            return Standing.TIE
        wide = max(self.high, 1 / self.low) > 1 + UNDECIDED
        return Standing.CANNOT_DECIDE if wide else Standing.TIE


@dataclass(frozen=True)
class ContestResult:
    """The result of a case or a cell."""

    winner: str | None  # None: no implementation has a number
    latency_ms: float | None
    spread: tuple[float | None, float | None]  # p20 and p80 of the winner
    n: int | None  # samples of the winner, the fewest of the cases
    speedup: float | None  # winner over the baseline
    rivals: tuple[Rival, ...]  # implementations with numbers in as many cases, fastest first
    failed: tuple[tuple[str, str], ...]  # name and status
    status: str | None  # most frequent status of the failed
    cases: int

    @property
    def ties(self) -> tuple[str, ...]:
        """Return the rivals that tie with the winner."""
        return tuple(rival.name for rival in self.rivals if rival.ties)

    @property
    def standing(self) -> Standing:
        """Return the lowest certainty over the rivals."""
        found = {rival.standing for rival in self.rivals}
        return next((each for each in reversed(Standing) if each in found), Standing.AHEAD)


Contest = Mapping[str, Contender]  # the contenders of one case, by implementation


def decide(cases: Sequence[Contest]) -> ContestResult:
    """Decide the winner of a case, or of several cases by the geometric means of their times."""
    names = sorted({name for contest in cases for name in contest})
    found = {name: [contest.get(name) for contest in cases] for name in names}
    numbers = {name: sum(map(has_number, found[name])) for name in names}
    in_dtype = {name: all(each is None or each.precision is None for each in found[name]) for name in names}
    eligible = [name for name in names if numbers[name] and in_dtype[name]]
    eligible = [name for name in eligible if numbers[name] == max(numbers[other] for other in eligible)]
    without = {name: next(filter(None, found[name]), None) for name in names if not numbers[name]}
    failed = tuple((name, str(each.measurement.status)) for name, each in without.items() if each)
    statuses = [status for _, status in failed]
    most_frequent = max(sorted(statuses), key=statuses.count) if statuses else None
    if not eligible:
        return ContestResult(None, None, (None, None), None, None, (), failed, most_frequent, len(cases))
    times = {name: geometric_mean(c.measurement.value for c in found[name] if has_number(c)) for name in eligible}
    first, *others = sorted(eligible, key=lambda name: (times[name], name))
    rivals = tuple(_rival(found[first], found[name], times[name] / times[first], name) for name in others)
    best = [contender for contender in found[first] if has_number(contender)]
    spread = _mean([c.measurement.p20 for c in best]), _mean([c.measurement.p80 for c in best])
    counts = [c.measurement.n for c in best]
    fewest = None if None in counts else min(counts)
    speedup = geometric_mean(c.speedup for c in best if c.speedup)
    return ContestResult(first, times[first], spread, fewest, speedup, rivals, failed, most_frequent, len(cases))


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; None if a value is missing."""
    return geometric_mean(values) if all(values) else None


def has_number(contender: Contender | None) -> bool:
    """Return whether a contender ran and has a time."""
    return contender is not None and contender.measurement.status is Status.OK and bool(contender.measurement.value)


def _rival(winner: Sequence[Contender | None], other: Sequence[Contender | None], ratio: float, name: str) -> Rival:
    """Judge a rival. Several cases are judged by the mean of their intervals, as if all had the same error."""
    if ratio > JUDGED_WITHIN and not any(contender and contender.measurement.samples for contender in other):
        return Rival(name, ratio, None, None, ties=False)
    pairs = [(a, b) for a, b in zip(winner, other, strict=True) if has_number(a) and has_number(b)]
    found = [_judged(a, b) for a, b in pairs]
    low, high = mean_range(found)
    if low is None or high is None:
        return Rival(name, ratio, None, None, ties=ratio <= 1 + BAND)
    ties = high >= 1 / (1 + BAND)
    certain = ties or all(judgement.verdict is Verdict.SLOWER for judgement in found)
    return Rival(name, ratio, 1 / high, 1 / low, ties=ties, certain=certain)


def mean_range(found: Sequence[Judgement]) -> tuple[float | None, float | None]:
    """Return the geometric mean of the ends of some intervals; None if there is none or one has no spread."""
    if not found or any(judgement.low is None for judgement in found):
        return None, None
    low, high = (math.exp(fmean(math.log(getattr(each, end)) for each in found)) for end in ("low", "high"))
    return low, high


def _judged(winner: Contender, other: Contender) -> Judgement:
    """Return the verdict on the other implementation against the winner."""
    protocol = winner.protocol if winner.protocol == other.protocol else None
    return judge(winner.measurement, other.measurement, protocol=protocol, paired=sampled_in_rounds(protocol))
