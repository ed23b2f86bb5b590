"""The usual spread between rounds, on made-up spreads."""

import pytest

from results.compare.between_rounds import RoundSpread, usual


def test_cells_with_the_same_spread_say_it_as_surely_as_can_be() -> None:
    cells = [(1.0, RoundSpread(4e-4, 2.0))] * 48
    spread = usual(cells).near(1.0)
    assert spread.freedom == pytest.approx(1000)
    assert 4e-4 < spread.variance < 8e-4, "the mean of the logarithms is below the logarithm of the mean"


def test_too_few_cells_say_nothing() -> None:
    assert usual([(1.0, RoundSpread(4e-4, 2.0))] * 4).near(1.0) is None
