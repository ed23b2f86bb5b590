"""Joules of a call, from a counter that moves in steps."""

import pytest

from runner.measure.energy import EnergyMeter


class Gpu:
    """Time that passes only while it is called, and a counter that is read in steps of 0.1 s."""

    def __init__(self, watts: float = 500.0, call_s: float = 0.001, step_s: float = 0.1) -> None:
        self.watts, self.call_s, self.step_s, self.now = watts, call_s, step_s, 0.0

    def call(self) -> None:
        self.now += self.call_s

    def counter(self) -> float:
        return self.watts * self.step_s * int(self.now / self.step_s + 1e-9)

    def meter(self, counter=None) -> EnergyMeter:
        return EnergyMeter(counter or self.counter, lambda: lambda: None, clock=lambda: self.now)


@pytest.mark.parametrize("call_s", [1e-4, 1e-3, 0.03])
def test_the_joules_of_a_call_are_power_times_its_time(call_s: float) -> None:
    gpu = Gpu(call_s=call_s)
    found = gpu.meter().measure(gpu.call, call_s * 1e3, least_s=0.2)
    assert found.joules == pytest.approx(500.0 * call_s, rel=0.15 if call_s > 0.01 else 0.05)
    assert found.calls * call_s >= 0.2
    assert found.watts == pytest.approx(500.0, rel=0.15)


def test_calls_right_after_each_other_share_a_step_and_need_no_wait_for_one() -> None:
    gpu = Gpu()
    meter = gpu.meter()
    meter.measure(gpu.call, 1.0, least_s=0.09)
    start = gpu.now
    gpu.watts = 500.0
    found = meter.measure(gpu.call, 1.0, least_s=0.09)
    assert gpu.now - start == pytest.approx(0.1, abs=0.011)
    assert found.joules == pytest.approx(0.5, rel=0.1)
    gpu.now += 0.03  # too long ago to begin with
    start = gpu.now
    assert meter.measure(gpu.call, 1.0, least_s=0.09).joules == pytest.approx(0.5, rel=0.1)
    assert gpu.now - start > 0.15


def test_a_counter_that_stands_still_or_is_missing_gives_no_number() -> None:
    gpu = Gpu()
    assert gpu.meter(lambda: 7.0).measure(gpu.call, 1.0, least_s=0.2) is None
    assert gpu.meter(lambda: None).measure(gpu.call, 1.0, least_s=0.2) is None
