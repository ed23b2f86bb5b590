"""The usual spread between rounds, on made-up spreads."""

import math
import random
from dataclasses import replace

import pytest

from results.compare.between_rounds import RoundMedians, RoundSpread, following, half_interval, spread, student, usual


def test_cells_of_the_same_spread_say_it_surely_a_dozen_show_a_walk_and_too_few_say_nothing() -> None:
    cells = [(1.0, RoundSpread(4e-4, 2.0))] * 48
    spread = usual(cells).near(1.0)
    assert spread.freedom == pytest.approx(1000)
    assert 4e-4 < spread.variance < 8e-4, "the mean of the logarithms is below the logarithm of the mean"
    assert usual([(1.0, RoundSpread(4e-4, 2.0))] * 4).near(1.0) is None
    walk = RoundMedians((0.0, 0.02, 0.03), True), RoundMedians((0.0, 0.0, 0.0), True)
    assert following([walk] * 11) == 0
    assert following([walk] * 12) == 0.95


def test_quantiles_of_students_t_are_those_of_the_tables() -> None:
    assert student(0.975, 2) == pytest.approx(4.3027, rel=0.01)
    assert student(0.995, 4) == pytest.approx(4.6041, rel=0.003)


@pytest.mark.parametrize(
    ("follow", "count", "found", "times"),
    [(0.0, 3, (0, 0), 1), (0.9, 3, (0.95, 0.95), 6.6), (0.0, 8, (0, 0), 1), (0.6, 8, (0.8, 0.9), 4.4)],
)
def test_rounds_that_follow_each_other_widen_the_interval(follow, count, found, times) -> None:
    chance, cells = random.Random(1), []
    for _ in range(240):
        logs = [chance.gauss(0, 0.02)]
        for _ in range(count - 1):
            logs.append(follow * logs[-1] + chance.gauss(0, 0.02 * math.sqrt(1 - follow**2)))
        cells.append((RoundMedians(tuple(logs), True), RoundMedians((0.0,) * count, True)))
    correlation = following(cells)
    assert found[0] <= correlation <= found[1]
    first, second = cells[0]
    near = usual([(1.0, spread(a, b, paired=True)) for a, b in cells], correlation).near(1.0)
    wide = half_interval(first, second, near, paired=True, certainty=0.95)
    plain = half_interval(first, second, replace(near, following=0.0), paired=True, certainty=0.95)
    assert wide == pytest.approx(plain * times, rel=0.2)
