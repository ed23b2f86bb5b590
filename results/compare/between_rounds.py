"""How much the rounds of a measurement differ: its own rounds, and what is usual for cells of about that length.

Three rounds say little about their own spread: Student's t has two degrees of freedom a side. The other cells of the
same two sides were taken by the same protocol on the same machines, so their spread says what is usual, and both are
weighted by how much they know: the moderated variance of Smyth (Statistical Applications in Genetics and Molecular
Biology 3, 2004, article 3), estimated for cells of like length. A cell whose rounds differ far more than is usual
drifts, and is judged by its own rounds alone.

Rounds that follow each other on a slow drift differ by less than they are off together. The cells of a run say whether
that is so: the mean square of successive differences over the variance (von Neumann, Annals of Mathematical Statistics
12, 1941, 367) is 2 for independent rounds and smaller for rounds that follow each other.
Standard library only.
"""

import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from results.records import Measurement
from results.spread import variance

LEAST_SAMPLES = 6  # fewer are too few to be cut into rounds
_THIRDS = 3  # parts that replace the rounds if their boundaries are unknown
LIKE = 24  # cells that are enough to say what is usual at their length, or in a stretch of time
_FEW = 12  # fewer cells do not show whether rounds follow each other
_MANY = 6  # rounds that are enough to estimate their correlation
_FOLLOWING = 1.85
_SLOW_WALK = 0.95  # correlation of neighboring rounds where rounds follow each other
_WALKS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)  # correlations that six rounds or more can show
_DRIFTS = 0.995  # beyond this quantile of what is usual, a cell drifts
_CERTAIN = 1e3  # degrees of freedom that are as good as infinitely many
_NORMAL = statistics.NormalDist().inv_cdf
T = TypeVar("T")


@dataclass(frozen=True)
class RoundMedians:
    """The logarithms of the medians of a measurement's rounds."""

    logs: tuple[float, ...]
    said: bool  # the journal says where each round ends; otherwise these are thirds of the samples


@dataclass(frozen=True)
class RoundSpread:
    """The variance of the logarithm of a round, and its degrees of freedom."""

    variance: float
    freedom: float
    following: float = 0.0  # correlation of neighboring rounds

    @property
    def wider(self) -> str:
        """Return the words about an interval that is wider by the correlation; none if there is no correlation."""
        return ", wider because rounds follow each other" if self.following else ""


@dataclass(frozen=True)
class Usual:
    """What is usual: a spread for each stretch of latencies, shortest first."""

    upto: tuple[float, ...] = ()  # milliseconds; the last stretch has no end
    spreads: tuple[RoundSpread | None, ...] = (None,)
    following: float = 0.0

    def near(self, latency_ms: float) -> RoundSpread | None:
        """Return the spread of cells of about that length; None where too few were seen."""
        found = self.spreads[bisect_right(self.upto, latency_ms)]
        return found and replace(found, following=self.following)


PairOfRounds = tuple[float, RoundMedians, RoundMedians]  # latency in milliseconds, and both sides


def rounds(measurement: Measurement) -> RoundMedians | None:
    """Return the rounds of a measurement, thirds where it has one; None where it keeps too few samples."""
    return rounds_of(measurement.samples, measurement.round_sizes)


def rounds_of(samples: Sequence[float], sizes: Sequence[int]) -> RoundMedians | None:
    """Return the rounds of samples in their order, thirds where there is one; None where samples are too few."""
    if len(samples) < LEAST_SAMPLES:
        return None
    said = len(sizes) > 1 and sum(sizes) == len(samples) and min(sizes) > 0
    thirds = [round(len(samples) * part / _THIRDS) for part in range(_THIRDS + 1)]
    cuts = [sum(sizes[:i]) for i in range(len(sizes) + 1)] if said else thirds
    parts = (samples[cuts[i] : cuts[i + 1]] for i in range(len(cuts) - 1))
    return RoundMedians(tuple(math.log(statistics.median(part)) for part in parts), said)


def half_interval(
    first: RoundMedians, second: RoundMedians, usual: RoundSpread | None, *, paired: bool, certainty: float
) -> float:
    """Return how far the mean difference of the rounds can be off to either side, with that certainty for each side."""
    own = spread(first, second, paired=paired)
    drifts = usual is not None and own.variance > usual.variance * _chi_squared_share(_DRIFTS, own.freedom)
    whole = own if usual is None or drifts else _moderated(own, usual)
    parts = 1 / len(first.logs) if paired else 1 / len(first.logs) + 1 / len(second.logs)
    share, count = _share(usual.following if usual else 0.0, len(first.logs)), len(first.logs)
    follow = share * (count - 1) / (1 - share)  # the variance of rounds that follow each other is too small by itself
    return student(certainty, whole.freedom) * math.sqrt(whole.variance * parts * follow)


def spread(first: RoundMedians, second: RoundMedians, *, paired: bool) -> RoundSpread:
    """Return the spread of a round on either side, pooled; of paired rounds, that of their differences."""
    if paired:
        apart = [a - b for a, b in zip(first.logs, second.logs, strict=True)]
        return RoundSpread(variance(apart), len(apart) - 1)
    freedoms = [len(side.logs) - 1 for side in (first, second)]
    sums = [variance(side.logs) * n for side, n in zip((first, second), freedoms, strict=True)]
    return RoundSpread(sum(sums) / sum(freedoms), sum(freedoms))


def following(cells: Iterable[tuple[RoundMedians, RoundMedians]]) -> float:
    """Return the correlation of neighboring paired rounds; 0 unless cells show one.

    Cells show it if their mean ratio is below 2 by more than two standard errors, or below 1.85. It is 2 of independent
    rounds, 1.73 of three rounds of a slow walk. Six rounds or more give an estimate, three standard errors and a step
    of _WALKS on the safe side, as samples add noise. Fewer do not show how slow the drift is, so a walk is assumed.
    """
    by_count: dict[int, list[float]] = {}
    for first, second in cells:
        apart = [a - b for a, b in zip(first.logs, second.logs, strict=True)]
        if len(apart) >= _THIRDS and variance(apart) > 0:
            by_count.setdefault(len(apart), []).append(_neumann(apart))
    enough = [(count >= _MANY, len(ratios), count) for count, ratios in by_count.items() if len(ratios) >= _FEW]
    if not enough:
        return 0.0
    count = max(enough)[2]  # of enough rounds those of most cells, as cells that took more were chosen
    ratios = by_count[count]
    mean, twice = statistics.fmean(ratios), 2 * math.sqrt(variance(ratios) / len(ratios))
    if mean >= max(_FOLLOWING, 2 - twice):
        return 0.0
    if count < _MANY:
        return _SLOW_WALK
    return next((above for at, above in pairwise(_WALKS) if _mean_ratio(at, count) <= mean - 1.5 * twice), _WALKS[-1])


@lru_cache
def _mean_ratio(correlation: float, count: int) -> float:
    """Return the mean ratio of so many rounds with that correlation, of 500 walks drawn with a fixed seed."""
    chance, ratios = random.Random(0), []
    for _ in range(500):
        walk = [chance.gauss(0, 1)]
        while len(walk) < count:
            walk.append(correlation * walk[-1] + chance.gauss(0, math.sqrt(1 - correlation**2)))
        ratios.append(_neumann(walk))
    return statistics.fmean(ratios)


def _neumann(logs: Sequence[float]) -> float:
    return sum((a - b) ** 2 for a, b in pairwise(logs)) / variance(logs) / (len(logs) - 1)


def _share(correlation: float, count: int) -> float:
    """Return the variance of a mean over rounds, relative to that of a round."""
    return (count + 2 * sum((count - lag) * correlation**lag for lag in range(1, count))) / count**2


def usual_of_pairs(cells: Iterable[PairOfRounds]) -> Usual:
    """Return what is usual among cells of paired rounds, each given by its latency and both sides."""
    known = list(cells)
    follow = following((a, b) for _, a, b in known)
    return usual(((latency_ms, spread(a, b, paired=True)) for latency_ms, a, b in known), follow)


def usual(cells: Iterable[tuple[float, RoundSpread]], following: float = 0.0) -> Usual:
    """Return what is usual among cells, each given by its latency and spread; nothing where they are too few."""
    cut = stretches(sorted(cells, key=lambda cell: cell[0]))
    ends = tuple(stretch[0][0] for stretch in cut[1:])
    return Usual(ends, tuple(_of_group([spread for _, spread in stretch]) for stretch in cut), following)


def stretches(ordered: Sequence[T]) -> list[Sequence[T]]:
    """Return the items in stretches of about equal size, as many as there can be of enough items."""
    count = max(1, len(ordered) // LIKE)
    cuts = [round(len(ordered) * i / count) for i in range(count + 1)]
    return [ordered[start:end] for start, end in pairwise(cuts)]


def student(certainty: float, freedom: float) -> float:
    """Return the quantile of Student's t, within 0.3 % from four degrees of freedom on, 4 % at two.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    x = _NORMAL(certainty)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def _chi_squared_share(certainty: float, freedom: float) -> float:
    """Return the quantile of chi-squared over its degrees of freedom, by Wilson and Hilferty (PNAS 17, 1931, 684)."""
    part = 2 / (9 * freedom)
    return (1 - part + _NORMAL(certainty) * math.sqrt(part)) ** 3


def _moderated(own: RoundSpread, usual: RoundSpread) -> RoundSpread:
    freedom = own.freedom + usual.freedom
    return RoundSpread((own.variance * own.freedom + usual.variance * usual.freedom) / freedom, freedom)


def _of_group(spreads: Sequence[RoundSpread]) -> RoundSpread | None:
    """Estimate the usual spread by the mean and variance of the logarithms, as Smyth does in section 6.2."""
    known = [spread for spread in spreads if spread.variance > 0]
    if len(known) < LIKE // 2:
        return None
    shifted = [math.log(s.variance) - _digamma(s.freedom / 2) + math.log(s.freedom / 2) for s in known]
    beyond = variance(shifted) - statistics.fmean(_trigamma(s.freedom / 2) for s in known)
    half = _inverse_trigamma(beyond) if beyond > 0 else _CERTAIN / 2
    return RoundSpread(math.exp(statistics.fmean(shifted) + _digamma(half) - math.log(half)), 2 * half)


def _digamma(x: float) -> float:
    """Return digamma by Abramowitz and Stegun, 6.3.5 and 6.3.18."""
    if x < 8:
        return _digamma(x + 1) - 1 / x
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4)


def _trigamma(x: float) -> float:
    """Return trigamma by Abramowitz and Stegun, 6.4.6 and 6.4.12."""
    if x < 8:
        return _trigamma(x + 1) + 1 / x**2
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5)


def _inverse_trigamma(value: float) -> float:
    low, high = 1e-3, _CERTAIN / 2
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return low
