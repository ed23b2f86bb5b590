"""How far eager times of two processes differ beyond what their rounds show.

The rounds of a cell are over within a second or so, but a host is busy for longer: all implementations of a case move
together, in every round of it. Of the comparison's own cells, taken a stretch at a time in the order they were taken,
this is what their speedups scatter by beyond their standard errors, about the median of the same implementation and
mode, so that an implementation that changed everywhere is no noise. The scatter is read off a quantile, so that a few
cells which truly changed are none either; it comes in bursts, hence the few degrees of freedom. As the empirical null
of Efron (Journal of the American Statistical Association 99, 2004, 96), but for each stretch. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from results.round_spread import Spread

STRETCH = 24  # cells that follow each other
LEAST = 12  # fewer cannot tell noise from change
SHARE = 0.85  # of a stretch that is taken to be unchanged
FREEDOM = 4.0
# where cells are too few: as much again as the rounds show, the two shipped runs with 504 cells in common say so
AS_ROUNDS = 1.0
_DEVIATIONS = statistics.NormalDist().inv_cdf((1 + SHARE) / 2)  # that the share is within


@dataclass(frozen=True)
class Shift:
    """A cell of the comparison."""

    kind: Hashable  # what changes together: the implementation and mode
    speedup: float  # its logarithm
    error: float  # the standard error of that, by its rounds


def beyond_rounds(cells: Sequence[Shift]) -> list[Spread]:
    """What to add to the variance of each cell, given in the order they were measured."""
    if len(cells) < LEAST:
        return [Spread((AS_ROUNDS * cell.error) ** 2, FREEDOM) for cell in cells]
    usual = _medians(cells)
    count = max(1, len(cells) // STRETCH)
    cuts = [round(len(cells) * i / count) for i in range(count + 1)]
    found: list[Spread] = []
    for i in range(count):
        stretch = cells[cuts[i] : cuts[i + 1]]
        scatter = _quantile([abs(cell.speedup - usual[cell.kind]) for cell in stretch]) / _DEVIATIONS
        beyond = scatter**2 - statistics.median(cell.error for cell in stretch) ** 2
        found += [Spread(max(0.0, beyond), FREEDOM)] * len(stretch)
    return found


def _medians(cells: Sequence[Shift]) -> dict[Hashable, float]:
    by_kind: defaultdict[Hashable, list[float]] = defaultdict(list)
    for cell in cells:
        by_kind[cell.kind].append(cell.speedup)
    return {kind: statistics.median(speedups) for kind, speedups in by_kind.items()}


def _quantile(values: Sequence[float]) -> float:
    """What the share of them does not exceed, between the two nearest."""
    ordered = sorted(values)
    place = SHARE * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))
