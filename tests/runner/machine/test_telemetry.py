"""What readings of the GPU are made into: a flag and a sentence, or silence."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runner.machine import nvml, telemetry
from runner.machine.nvml import Reading
from runner.machine.telemetry import Findings, Telemetry, judge


def reading(clock: int = 1980, throttle: int = 0, others: int | None = 0) -> Reading:
    return Reading(clock, 300.0, 40, throttle, max_sm_clock_mhz=1980, others=others)


def test_a_full_clock_is_not_throttled_and_the_power_limit_counts_only_when_it_fell() -> None:
    assert judge([reading(), reading()]) == Findings(sm_clock_mhz=1980)
    assert judge([]) == Findings()
    assert judge([reading(1965, 0x04)] * 3) == Findings(sm_clock_mhz=1965)
    found = judge([reading(1500, 0x04)] * 3)
    assert found.flags == ("throttled",)
    assert found.note == "The GPU was held back by its power limit to an SM clock of 1500 MHz."


def test_a_clock_below_nine_tenths_is_throttling_and_heat_at_any_clock_with_all_reasons_named() -> None:
    assert not judge([reading(1790)] * 3).throttled
    found = judge([reading(1980), reading(1700), reading(1700)])
    assert found.throttled
    assert found.note == "The GPU was held back to an SM clock of 1700 MHz of 1980; NVML names no reason."
    found = judge([reading(1980, 0x20), reading(1700, 0x04), reading(1900, 0x00)])
    assert found.flags == ("throttled",)
    assert "power limit, temperature (software) to an SM clock of 1900 MHz" in found.note


def test_company_on_the_gpu_is_flagged_unless_unknown_or_the_other_version(monkeypatch) -> None:
    assert judge([reading(others=None)]).flags == ()
    found = judge([reading(others=2), reading(others=1)])
    assert (found.flags, found.note) == (("shared GPU",), "2 other processes were on the GPU.")
    assert judge([reading(others=1)] * 3, companions=1) == Findings((), None, 1980)
    assert judge([reading(others=2)] * 3, companions=1).flags == ("shared GPU",)


def test_only_readings_of_the_window_count(monkeypatch) -> None:
    seen = threading.Event()

    hot = SimpleNamespace(reading=lambda: seen.set() or reading(1200, 0x40))
    monkeypatch.setattr(nvml, "find", lambda uuid: hot)
    watching = Telemetry("GPU-1")
    assert seen.wait(30)
    watching.stop()
    at = watching._readings[0][0]
    assert watching.findings([(at, at)]).flags == ("throttled",)
    assert watching.findings([(at - 100, at - 50), (at + 50, at + 100)]).flags == ()


def test_a_look_adds_a_reading_at_once(monkeypatch) -> None:
    monkeypatch.setattr(nvml, "find", lambda uuid: SimpleNamespace(clock_reading=lambda: reading(1234)))
    monkeypatch.setattr(telemetry, "_PERIOD_S", 1e6)
    watching = Telemetry("GPU-1")
    before = time.monotonic()
    watching.look(before)
    watching.stop()
    ((at, found),) = watching.between(before, time.monotonic())
    assert found.sm_clock_mhz == 1234 and at >= before
    assert watching.between(before - 2, before - 1) == []


def watching(monkeypatch, *clocks: int) -> Telemetry:
    """Telemetry of a GPU that never reads by itself, after readings of these clocks, one every 50 ms until now."""
    monkeypatch.setattr(nvml, "find", lambda uuid: SimpleNamespace(clock_reading=reading))
    monkeypatch.setattr(telemetry, "_PERIOD_S", 1e6)
    made, now = Telemetry("GPU-1"), time.monotonic()
    monkeypatch.setattr(telemetry, "_PERIOD_S", 0.05)
    made._readings.extend((now - 0.05 * back, reading(clock)) for back, clock in reversed(list(enumerate(clocks))))
    return made


def test_a_look_is_spared_only_if_a_reading_fell_into_the_window(monkeypatch) -> None:
    made = watching(monkeypatch, 1980)
    made.look(time.monotonic() - 1.0)
    assert len(made._readings) == 1
    made.look(time.monotonic())
    assert len(made._readings) == 2


def test_a_throttled_moment_before_or_after_a_window_is_none_of_its_own(monkeypatch) -> None:
    made, now = watching(monkeypatch), time.monotonic()
    held = reading(1200, throttle=0x20)
    made._readings.extend([(now - 0.06, held), (now - 0.03, reading(1980)), (now, held)])
    assert made.findings([(now - 0.05, now - 0.01)]) == Findings((), None, 1980)
    assert made.findings([(now - 0.07, now - 0.01)]).throttled


def test_a_window_too_short_for_a_regular_reading_or_without_any_says_so(monkeypatch) -> None:
    made, now = watching(monkeypatch), time.monotonic()
    made._readings.append((now - 0.001, replace(reading(1980), power_w=None)))
    found = made.findings([(now - 0.012, now)])
    assert (found.flags, found.sm_clock_mhz) == ((), 1980)
    assert found.note.startswith("Its 12 ms of timing are too short for regular readings")
    made, now = watching(monkeypatch, 1200), time.monotonic()
    found = made.findings([(now + 1.0, now + 1.002)])
    assert (found.flags, found.sm_clock_mhz) == ((), None)
    assert (
        found.note == "No reading of the clock fell into its 2 ms of timing, so nothing says whether it was throttled."
    )
    assert made.findings([]) == Findings(), "nothing was timed"


@pytest.mark.parametrize(
    ("clocks", "steady"), [((1980, 1980, 1950), True), ((1980, 1980), False), ((1980, 1700, 1980), False)]
)
def test_a_clock_is_steady_after_three_full_readings_in_a_row(monkeypatch, clocks, steady) -> None:
    asked = []
    monkeypatch.setattr(telemetry.stopwatch, "settle", lambda *_, steady: asked.append(steady))
    watching(monkeypatch, *clocks).settle("cuda:0")
    assert asked == [steady]


def test_the_findings_of_a_late_window_are_the_same_whatever_came_before(monkeypatch) -> None:
    made = watching(monkeypatch, 1200, 1200, *[1980] * 5000)
    now = made._readings[-1][0]
    assert made.findings([(now - 0.06, now)]).sm_clock_mhz == 1200
    assert len(made._since(now - 1.0)) < 60


def test_nothing_is_read_while_it_is_paused(monkeypatch) -> None:
    read = threading.Semaphore(0)

    counting = SimpleNamespace(reading=lambda: read.release() or reading())
    monkeypatch.setattr(nvml, "find", lambda uuid: counting)
    monkeypatch.setattr(telemetry, "_PERIOD_S", 0.001)
    made = Telemetry("GPU-1")
    assert read.acquire(timeout=30)
    with made.paused():
        before = len(made._readings)
        made._end.wait(0.05)
        assert len(made._readings) == before
    while read.acquire(blocking=False):
        pass
    assert read.acquire(timeout=30)
    made.stop()


def test_without_nvml_it_is_silent() -> None:
    watching = telemetry.Telemetry(None)
    watching.look(0.0)
    assert watching.findings([(0.0, 1e12)]) == Findings()
    watching.stop()
