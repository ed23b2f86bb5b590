"""Extrapolates the latency of a model that does not fit the device from two smaller numbers of layers.

Both depths are measured alternately in one run, and the slope between them is the time of a layer. The method is used
only after it predicted a model that was measured whole in the same run with an error of at most MOST_ERROR.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from results.records import Status
from results.spread import spread
from runner.cells import Cell
from runner.levels import Call, make_inputs
from runner.measure.case import CaseRun

METRIC = "latency_extrapolated_ms"
MOST_ERROR = 0.03
_ROUNDS = 6  # smallest number with a 95 % interval
_SAMPLES, _PATIENCE_MS = 4, 200.0  # samples of a depth per round, and the time above which there is only one
# Without a warm-up the first rounds ran at a higher clock, and training of Llama-2 7B from 4 and 8 layers on an H200
# was 2.1 % off.
_WARM_UP_S = 0.7
_MODES = ("decode", "prefill", "train")


def extrapolated(shallow: float, deep: float, depths: Sequence[int], num_layers: int) -> float:
    """Return the milliseconds at a depth on the line through two other depths."""
    slope = (deep - shallow) / (depths[1] - depths[0])
    return shallow + slope * (num_layers - depths[0])


def extrapolate(run: CaseRun, cells: Sequence[Cell], measured: Sequence[Cell]) -> None:
    """Emit the extrapolated latency of each cell; for `measured` cells this gives the error of the method."""
    depths = run.bench.depths
    if not depths or run.case.num_layers is None or run.case.num_layers <= depths[-1]:
        return
    for cell in cells:
        if cell.mode not in _MODES:
            continue
        reason = None if cell in measured else _reason_against(run, cell)
        failed = (Status.SKIPPED, reason) if reason else None
        if not failed:
            step = f"extrapolation from {depths[0]} and {depths[1]} layers"
            failed = run.attempt(cell, [], step, partial(_extrapolate, run, cell))
        if failed:
            run.emit(cell, METRIC, timing=_timing(run, cell), status=failed[0], note=failed[1])


def _reason_against(run: CaseRun, cell: Cell) -> str | None:
    """Return why the extrapolation of a cell cannot be trusted; None if it can."""
    errors = run.bench.extrapolation_errors.get((cell.implementation, cell.mode))
    if not errors:
        return "Not extrapolated: this run measured no model that fits in this mode before."
    if max(errors) > MOST_ERROR:
        return (
            f"Not extrapolated: for a model that fits, the method was off by {max(errors):.1%} in this run "
            f"(allowed {MOST_ERROR:.0%})."
        )
    return None


def _timing(run: CaseRun, cell: Cell) -> str:
    kernel = "kernel" in run.bench.timings and "kernel" in run.bench.stopwatches and cell.mode != "train"
    return "kernel" if kernel else "eager"


def _extrapolate(run: CaseRun, cell: Cell) -> None:
    timing, depths = _timing(run, cell), run.bench.depths
    stopwatch = run.bench.stopwatches[timing]
    calls = [_call_at(run, cell, depth, timing) for depth in depths]
    # Both depths are called until the clock has settled to that of sustained work, as for the whole model.
    end = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < end:
        for call in calls:
            stopwatch.sample(call, 1)
    counts = [_SAMPLES if _SAMPLES * stopwatch.sample(call, 1)[0] <= _PATIENCE_MS else 1 for call in calls]
    rounds = [
        [statistics.median(stopwatch.sample(call, count)) for call, count in zip(calls, counts, strict=True)]
        for _ in range(_ROUNDS)
    ]
    found = [extrapolated(shallow, deep, depths, run.case.num_layers) for shallow, deep in rounds]
    if min(found) <= 0:
        note = "Not extrapolated: the times of both depths scatter more than they differ."
        run.emit(cell, METRIC, timing=timing, status=Status.SKIPPED, note=note)
        return
    note = f"From {depths[0]} and {depths[1]} layers: {rounds[-1][0]:.4g} and {rounds[-1][1]:.4g} ms in the last round."
    whole = run.latencies.get((cell, timing))
    if whole:
        error = abs(statistics.median(found) / whole - 1)
        run.bench.extrapolation_errors.setdefault((cell.implementation, cell.mode), []).append(error)
        note += f" The whole takes {whole:.4g} ms: {error:.2%} off."
    run.emit(cell, METRIC, timing=timing, note=note, **spread(found))


def _call_at(run: CaseRun, cell: Cell, depth: int, timing: str) -> Call:
    attention = run.implementation(cell.implementation).attention
    inputs = make_inputs(replace(run.case, num_layers=depth), run.bench.device, run.bench.seed)
    call = run.level.call(attention, inputs, cell.mode)
    if timing == "kernel":
        call = run.level.device_call(attention, inputs, cell.mode, call)
    call()
    return call
