"""Every second of a sweep belongs to one kind of work."""

import pytest

from runner.overhead import Costs, sentence


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_within_work_is_charged_to_the_inner_kind_and_what_raises_too() -> None:
    time = Time()
    costs = Costs(time)
    time.now = 5.0  # before anything is charged
    with costs.of("timing"):
        time.now = 6.0
        with costs.of("sampling"):
            time.now = 9.0
        time.now = 9.5
    costs.move(0.5, "timing", "compiling")
    assert costs.take() == {"timing": 1.0, "sampling": 3.0, "compiling": 0.5}
    assert costs.take() == {}
    with pytest.raises(KeyError), costs.of("memory"):
        time.now = 11.5
        raise KeyError
    assert costs.take() == {"memory": 2.0}


def test_the_price_of_a_sweep_is_what_is_no_sample() -> None:
    costs = {"sampling": 8.0, "energy": 2.0, "checks": 1.0, "compiling": 2.5, "total": 14.0}
    assert sentence(costs | {"wall": 7.5}).startswith("14.0 s in all of the cards' time within 7.5 s, 10.0 s of it ")
    assert sentence(costs) == (
        "14.0 s in all, 10.0 s of it sampling; "
        "beyond that 4.0 s (40 % of it): compiling 2.5 s, checks 1.0 s, else 0.5 s."
    )
    assert "beyond that 3.0 s: else 3.0 s" in sentence({"total": 3.0})
