"""The trace of half a minute: slices of equal length, whatever a call takes."""

import pytest

from runner.nvml import Reading
from runner.sustained import _series, _steady, trace


class Device:
    """Calls that get slower as it gets hot; time passes only while it works."""

    def __init__(self, call_ms: float) -> None:
        self.now, self.call_ms, self.calls = 0.0, call_ms, 0

    def timer(self, call, count: int) -> float:
        took = sum(self._one() for _ in range(count))
        self.now += took / 1e3
        return took

    def _one(self) -> float:
        self.calls += 1
        return self.call_ms * (1.0 if self.now < 5 else 1.25)


@pytest.mark.parametrize("call_ms", [0.02, 3.0, 700.0])
def test_the_slices_cover_the_time_and_each_has_the_rate_of_its_calls(call_ms: float) -> None:
    device = Device(call_ms)
    slices = trace(lambda: None, flops=1e12, seconds=10.0, timer=device.timer, clock=lambda: device.now)
    assert slices[-1].end >= 10.0
    assert all(piece.end - piece.start >= 0.249 for piece in slices)
    assert slices[0].tflops == pytest.approx(1e3 / call_ms)
    assert slices[-1].tflops == pytest.approx(1e3 / call_ms / 1.25)


def test_the_sustained_figure_is_that_of_the_last_third() -> None:
    assert _steady([9.0, 8.0, 5.0, 5.0, 4.0, 3.0]) == {
        "value": 3.5,
        "statistic": "median",
        "n": 6,
        "samples": (9.0, 8.0, 5.0, 5.0, 4.0, 3.0),
    }


def test_a_slice_without_a_reading_has_the_one_before_and_no_readings_give_no_series() -> None:
    def reading(clock: int) -> tuple[float, Reading]:
        return 0.0, Reading(clock, None, None, 0)

    readings = [[reading(1900), reading(1980)], [], [reading(1700)]]
    assert _series(readings, lambda r: r.sm_clock_mhz) == [1940.0, 1940.0, 1700.0]
    assert _series(readings, lambda r: r.power_w) == []
    assert _series([[], [reading(1700)]], lambda r: r.sm_clock_mhz) == []
