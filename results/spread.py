"""What samples of one measurement give: a median, its spread and its 95 % interval. Standard library only.

The runner stores these numbers with the samples. If an upload has samples, its numbers must follow from them.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any

CONFIDENCE = 0.95


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a Measurement that samples give: value (the median), mean, std, p20, p80, interval, n,
    samples.

    The interval is the one of order statistics, which assumes nothing about the distribution; it is missing below
    six samples, where even the smallest and the largest enclose the median with less than 95 %.
    """
    ordered = sorted(samples)
    low, high = median_interval(ordered)
    return {
        "value": statistics.median(ordered),
        "statistic": "median",
        "mean": statistics.fmean(ordered),
        "std": math.sqrt(variance(ordered)) if len(ordered) > 1 else None,
        "p20": quantile(ordered, 0.2),
        "p80": quantile(ordered, 0.8),
        "ci_low": low,
        "ci_high": high,
        "n": len(ordered),
        "samples": tuple(float(f"{sample:.6g}") for sample in samples),
    }


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two values or more.

    Rounded a few times where statistics.variance is exact, which takes twenty times as long.
    """
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of the median of sorted samples, by order statistics of the binomial distribution.

    Source: Conover, Practical Nonparametric Statistics, section 3.2 (confidence intervals for quantiles).
    """
    rank = _interval_rank(len(ordered))
    if rank is None:
        return None, None
    return ordered[rank], ordered[-1 - rank]


def is_precise(samples: Sequence[float], precision: float) -> bool:
    """Return whether half the 95 % interval of the median is within that share of the median."""
    ordered = sorted(samples)
    low, high = median_interval(ordered)
    return low is not None and (high - low) / 2 <= precision * statistics.median(ordered)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which that share of sorted samples lies, interpolated linearly."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@cache
def _interval_rank(n: int) -> int | None:
    """Return the largest r for which the samples of rank r from either end enclose the median with 95 %; None if none
    does."""
    tail, best = 0.0, None
    for rank in range(n // 2):
        tail += math.comb(n, rank) / 2**n  # P(at most `rank` samples lie below the median)
        if 1 - 2 * tail < CONFIDENCE:
            break
        best = rank
    return best
