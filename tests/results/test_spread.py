"""The statistics of samples: exact on known data, and the interval covers what it promises."""

import random
import statistics

import pytest

from results.spread import is_precise, median_interval, quantile, spread


def test_the_fields_of_known_samples() -> None:
    found = spread([5.0, 1.0, 3.0, 2.0, 4.0, 6.0])
    assert (found["value"], found["statistic"], found["mean"], found["n"]) == (3.5, "median", 3.5, 6)
    assert found["std"] == pytest.approx(statistics.stdev(range(1, 7)))
    assert (found["p20"], found["p80"]) == (2.0, 5.0)
    assert (found["ci_low"], found["ci_high"]) == (1.0, 6.0)
    assert found["samples"] == (5.0, 1.0, 3.0, 2.0, 4.0, 6.0)
    assert spread([0.123456789, 12345.6789])["samples"] == (0.123457, 12345.7)
    found = spread([2.0])
    assert (found["value"], found["std"], found["ci_low"], found["ci_high"]) == (2.0, None, None, None)


@pytest.mark.parametrize(
    ("n", "ranks"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (20, (6, 15)), (90, (36, 55))]
)
def test_the_interval_has_the_ranks_of_the_binomial_table(n: int, ranks: tuple[int, int] | None) -> None:
    # Ranks of the 95 % interval for a median as in printed tables (for n = 20: 6th and 15th).
    assert median_interval(list(range(1, n + 1))) == (ranks or (None, None))


def test_the_interval_covers_the_true_median_in_95_of_100_cases() -> None:
    source = random.Random(7)
    tries = 2000
    hits = 0
    for _ in range(tries):
        low, high = median_interval(sorted(source.lognormvariate(0.0, 0.5) for _ in range(21)))
        hits += low <= 1.0 <= high  # the median of this distribution is 1
    assert hits / tries >= 0.95


def test_quantiles_are_interpolated_and_precision_is_reached_by_equal_samples() -> None:
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([1.0], 0.8) == 1.0
    assert is_precise([1.0] * 6, 0.01)
    assert not is_precise([1.0] * 5, 0.01)
    assert not is_precise([1.0, 2.0] * 10, 0.01)
