"""Sustained load: TFLOP/s, SM clock, power and temperature of a cell over half a minute.

A benchmark of a few hundred milliseconds runs on a cool GPU at its highest clock; training does not. The calls run
back to back, without flushing L2, in slices of about a quarter of a second (`SLICE_S`). On a CPU the slices are timed
by wall time, and only TFLOP/s is recorded.

Rows of a cell, all without timing and with the same note:
- `sustained_tflops`, `sustained_clock_mhz`, `sustained_power_w`, `sustained_temperature_c`: `samples` has one number
  per slice, in order, so that sample i of all metrics is from the same slice. `value` is the median of the last third.
  A quantity that the driver does not report has no row. NVML's power is a mean over about one second
  (nvmlDeviceGetPowerUsage), so the first four slices include the time before.
- `burst_tflops`: the median of the first second, without samples.
Sustained joules per call are sustained_power_w over sustained_tflops times the operations of a call. `energy_j`,
measured by the GPU's counter over half a second, is recorded as in any run.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results import levels
from results.records import Status
from runner.cells import Cell
from runner.machine.nvml import Reading
from runner.measure.case import CaseRun
from runner.measure.stopwatch import device_ms
from runner.overhead import SAMPLING

SLICE_S = 0.25
BURST_S = 1.0
_TOLD_EVERY_S = 3.0
_MOST_CALLS = 400  # limit of queued calls, so that the launch queue does not fill up


@dataclass(frozen=True)
class Slice:
    """A quarter of a second of calls."""

    start: float  # time.monotonic()
    end: float
    tflops: float


def record_trace(run: CaseRun, cell: Cell) -> None:
    """Run a cell for the protocol's time and emit burst and sustained figures with the GPU's readings."""
    flops = levels.flops(cell.case, cell.mode)
    bench = run.bench
    if not flops:
        note = "A trace needs a case with a known number of operations."
        run.emit(cell, "sustained_tflops", status=Status.SKIPPED, note=note)
        return
    call = run.call(cell)
    timer, whole = device_ms if bench.device_type == "cuda" else wall_ms, bench.protocol.trace_s
    with bench.costs.of(SAMPLING):
        tell = lambda so_far: bench.begin(cell, f"trace, {so_far:.0f} of {whole:.0f} s")  # noqa: E731
        slices = trace(call, flops, whole, timer, tell=tell)
    tflops = [piece.tflops for piece in slices]
    note = f"Back-to-back calls for {slices[-1].end - slices[0].start:.0f} s in slices of about {SLICE_S} s."
    first = tflops[: max(1, round(BURST_S / SLICE_S))]
    run.emit(cell, "burst_tflops", value=statistics.median(first), statistic="median", n=len(first), note=note)
    run.emit(cell, "sustained_tflops", note=note, **_steady(tflops))
    readings = [bench.telemetry.between(piece.start, piece.end) for piece in slices]
    for metric, quantity in _QUANTITIES.items():
        series = _series(readings, quantity)
        if series:
            run.emit(cell, metric, note=note, **_steady(series))


def trace(
    call: Callable[[], object],
    flops: float,
    seconds: float,
    timer: Callable[[Callable[[], object], int], float],
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[float], None] = lambda so_far: None,
) -> list[Slice]:
    """Make calls for some seconds and return the slices.

    `timer` makes a number of calls and returns their milliseconds. `tell` gets the elapsed seconds every few seconds.
    """
    call_ms = timer(call, 1)
    slices: list[Slice] = []
    begun = told = clock()
    while clock() - begun < seconds:
        if clock() - told >= _TOLD_EVERY_S:
            told = clock()
            tell(told - begun)
        start, done, spent = clock(), 0, 0.0
        while spent < SLICE_S * 1e3:
            count = max(1, min(_MOST_CALLS, round((SLICE_S * 1e3 - spent) / max(call_ms, 1e-3))))
            took = timer(call, count)
            done, spent, call_ms = done + count, spent + took, took / count
        slices.append(Slice(start, clock(), done * flops / spent / 1e9))
    return slices


def wall_ms(call: Callable[[], object], count: int) -> float:
    """Return the milliseconds of successive calls on a CPU."""
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) * 1e3


_QUANTITIES: dict[str, Callable[[Reading], float | None]] = {
    "sustained_clock_mhz": lambda reading: reading.sm_clock_mhz,
    "sustained_power_w": lambda reading: reading.power_w,
    "sustained_temperature_c": lambda reading: reading.temperature_c,
}


def _series(
    readings: Sequence[Sequence[tuple[float, Reading]]], quantity: Callable[[Reading], float | None]
) -> list[float]:
    """Return one number per slice, the previous one if a slice has no reading; empty if the first has none."""
    series: list[float] = []
    known: float | None = None
    for of_slice in readings:
        found = [value for _, reading in of_slice if (value := quantity(reading)) is not None]
        known = statistics.median(found) if found else known
        if known is not None:
            series.append(float(known))
    return series if len(series) == len(readings) else []


def _steady(series: Sequence[float]) -> dict[str, object]:
    """Return the fields of a row: the median of the last third as value, and the whole series as samples."""
    last = series[-max(1, len(series) // 3) :]
    samples = tuple(float(f"{value:.6g}") for value in series)
    return {"value": statistics.median(last), "statistic": "median", "n": len(samples), "samples": samples}
