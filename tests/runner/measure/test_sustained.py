"""The trace of half a minute: slices of equal length, whatever a call takes."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from results.records import Measurement, Status, attention_case
from runner.cells import Cell
from runner.machine.nvml import Reading
from runner.measure import sustained
from runner.measure.sustained import _series, _steady, record_trace, trace
from runner.overhead import Costs
from runner.protocol import PROTOCOLS


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


def test_a_trace_says_how_far_it_is_and_the_sustained_figure_is_that_of_the_last_third() -> None:
    device, said = Device(3.0), []
    trace(lambda: None, 1e12, 10.0, device.timer, clock=lambda: device.now, tell=said.append)
    assert [round(so_far) for so_far in said] == [3, 6, 9]
    samples = (9.0, 8.0, 5.0, 5.0, 4.0, 3.0)
    assert _steady([*samples]) == {"value": 3.5, "statistic": "median", "n": 6, "samples": samples}


def test_a_slice_without_a_reading_has_the_one_before_and_no_readings_give_no_series() -> None:
    def reading(clock: int) -> tuple[float, Reading]:
        return 0.0, Reading(clock, None, None, 0)

    readings = [[reading(1900), reading(1980)], [], [reading(1700)]]
    assert _series(readings, lambda r: r.sm_clock_mhz) == [1940.0, 1940.0, 1700.0]
    assert _series(readings, lambda r: r.power_w) == []
    assert _series([[], [reading(1700)]], lambda r: r.sm_clock_mhz) == []


def busy(call, count: int) -> float:
    """What a device would take for 50 microseconds a call, without one."""
    end = time.perf_counter() + 5e-5 * count
    while time.perf_counter() < end:
        pass
    return 0.05 * count


class Traced:
    """A case under way on a GPU that is not there: calls of 2 ms, a clock that falls, a power that rises."""

    def __init__(self, monkeypatch) -> None:
        case = attention_case(batch=1, num_heads=1, seqlen=512, head_dim=64, dtype="float16", causal=False)
        self.cell = Cell(case, "x", "fwd")
        self.rows: dict[str, dict] = {}
        protocol = replace(PROTOCOLS["sustained"], trace_s=0.02)
        self.bench = SimpleNamespace(device_type="cuda", protocol=protocol, costs=Costs(), telemetry=self)
        self.bench.begin = lambda cell, step: None
        monkeypatch.setattr(sustained, "SLICE_S", 0.001)
        monkeypatch.setattr(sustained, "device_ms", busy)
        self.readings = 0

    def call(self, cell: Cell):
        return lambda: None

    def emit(self, cell: Cell, metric: str, **fields) -> None:
        row = Measurement("r", cell.case, cell.implementation, metric, Status.OK, mode=cell.mode, **fields)
        self.rows[metric] = vars(row)

    def between(self, start: float, end: float) -> list[tuple[float, Reading]]:
        self.readings += 1
        return [(start, Reading(1980 - self.readings, 300.0 + self.readings, None, 0))]


def test_the_trace_is_kept_as_samples_of_equal_length_beside_burst_and_sustained(monkeypatch) -> None:
    traced = Traced(monkeypatch)
    record_trace(traced, traced.cell)
    assert set(traced.rows) == {"burst_tflops", "sustained_tflops", "sustained_clock_mhz", "sustained_power_w"}
    slices = len(traced.rows["sustained_tflops"]["samples"])
    assert slices >= 3
    for metric in ("sustained_clock_mhz", "sustained_power_w"):
        assert len(traced.rows[metric]["samples"]) == slices
    clocks = traced.rows["sustained_clock_mhz"]["samples"]
    assert list(clocks) == sorted(clocks, reverse=True)
    assert traced.rows["sustained_clock_mhz"]["value"] < clocks[0]
    expected = 4 * 512 * 512 * 64 / 0.05 / 1e9
    assert traced.rows["burst_tflops"]["value"] == pytest.approx(expected, rel=0.01)
    assert traced.bench.costs.take()["sampling"] > 0
