"""What readings of the GPU are made into: a flag and a sentence, or silence."""

import threading
import time

from runner import nvml, telemetry
from runner.nvml import Reading
from runner.telemetry import Findings, Telemetry, judge


def reading(clock: int = 1980, throttle: int = 0, others: int | None = 0) -> Reading:
    return Reading(clock, 300.0, 40, throttle, max_sm_clock_mhz=1980, others=others)


def test_a_gpu_at_its_full_clock_is_not_throttled() -> None:
    assert judge([reading(), reading()]) == Findings(sm_clock_mhz=1980)
    assert judge([]) == Findings()


def test_the_power_limit_counts_only_when_the_clock_fell() -> None:
    assert judge([reading(1965, 0x04)] * 3) == Findings(sm_clock_mhz=1965)
    found = judge([reading(1500, 0x04)] * 3)
    assert found.flags == ("throttled",)
    assert found.note == "The GPU was held back by its power limit to an SM clock of 1500 MHz."


def test_a_clock_below_nine_tenths_of_the_highest_is_throttling_even_without_a_reason() -> None:
    assert not judge([reading(1790)] * 3).throttled
    found = judge([reading(1980), reading(1700), reading(1700)])
    assert found.throttled
    assert found.note == "The GPU was held back to an SM clock of 1700 MHz of 1980; NVML names no reason."


def test_heat_counts_at_any_clock_and_all_reasons_are_named() -> None:
    found = judge([reading(1980, 0x20), reading(1700, 0x04), reading(1900, 0x00)])
    assert found.flags == ("throttled",)
    assert "power limit, temperature (software) to an SM clock of 1900 MHz" in found.note


def test_company_on_the_gpu_is_flagged_and_an_unknown_number_is_not() -> None:
    assert judge([reading(others=None)]).flags == ()
    found = judge([reading(others=2), reading(others=1)])
    assert (found.flags, found.note) == (("shared GPU",), "2 other processes were on the GPU.")


def test_only_readings_of_the_window_count(monkeypatch) -> None:
    seen = threading.Event()

    class Hot:
        def reading(self) -> Reading:
            seen.set()
            return reading(1200, 0x40)

    monkeypatch.setattr(nvml, "find", lambda uuid: Hot())
    watching = Telemetry("GPU-1")
    assert seen.wait(30)
    watching.stop()
    at = watching._readings[0][0]
    assert watching.findings([(at, at)]).flags == ("throttled",)
    assert watching.findings([(at - 100, at - 50), (at + 50, at + 100)]) == Findings()


def test_a_look_adds_a_reading_at_once(monkeypatch) -> None:
    class Still:
        def clock_reading(self) -> Reading:
            return reading(1234)

    monkeypatch.setattr(nvml, "find", lambda uuid: Still())
    monkeypatch.setattr(telemetry, "_PERIOD_S", 1e6)
    watching = Telemetry("GPU-1")
    before = time.monotonic()
    watching.look()
    watching.stop()
    ((at, found),) = watching.between(before, time.monotonic())
    assert found.sm_clock_mhz == 1234 and at >= before
    assert watching.between(before - 2, before - 1) == []


def test_without_nvml_it_is_silent() -> None:
    watching = telemetry.Telemetry(None)
    watching.look()
    assert watching.findings([(0.0, 1e12)]) == Findings()
    watching.stop()
