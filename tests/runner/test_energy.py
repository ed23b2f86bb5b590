"""Joules of a call, from a counter that moves in steps."""

import pytest

from runner.energy import energy_of_call


class Gpu:
    """Time that passes only while it is called, and a counter that is read in steps of 0.1 s."""

    def __init__(self, watts: float = 500.0, call_s: float = 0.001, step_s: float = 0.1) -> None:
        self.watts, self.call_s, self.step_s, self.now = watts, call_s, step_s, 0.0

    def call(self) -> None:
        self.now += self.call_s

    def counter(self) -> float:
        return self.watts * self.step_s * int(self.now / self.step_s + 1e-9)

    def measure(self, counter=None, least_s: float = 0.2):
        options = {"synchronize": lambda: None, "call_ms": self.call_s * 1e3, "least_s": least_s}
        return energy_of_call(self.call, counter or self.counter, clock=lambda: self.now, **options)


@pytest.mark.parametrize("call_s", [1e-5, 1e-3, 0.03])
def test_the_joules_of_a_call_are_power_times_its_time(call_s: float) -> None:
    found = Gpu(call_s=call_s).measure()
    assert found.joules == pytest.approx(500.0 * call_s, rel=0.15 if call_s > 0.01 else 0.02)
    assert found.calls * call_s >= 0.2


def test_a_counter_that_stands_still_or_is_missing_gives_no_number() -> None:
    assert Gpu().measure(counter=lambda: 7.0) is None
    assert Gpu().measure(counter=lambda: None) is None
