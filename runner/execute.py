"""Measures the cells of one case: check, memory, then interleaved rounds of timing. The one place where an exception
of a kernel becomes a status."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels import registry
from results.records import Case, Measurement, Status
from runner import correctness, faults, latency, memory
from runner.cells import MODES_WITH_MEMORY, Cell, utc_now, without_number
from runner.plan import NOT_TIMED, interpreter_reason, is_interpreted
from runner.protocol import Protocol
from runner.spread import spread
from runner.subjects import Inputs, Subject, make_inputs
from runner.telemetry import Findings, Telemetry

NO_KERNEL_TIME = "A CPU has no device time apart from the call's own; see the eager timing."
_BRIEF_PREHEAT_S = 0.03


class ContextBroken(RuntimeError):
    """A fault has poisoned this process's CUDA context; its cell has its status, a new process must do the rest."""


@dataclass
class Bench:
    """What a worker keeps from case to case."""

    run_id: str
    device: str
    protocol: Protocol
    timings: tuple[str, ...]
    seed: int
    emit: Callable[[Measurement], None]
    begin: Callable[[Cell | None, str], None]  # announces a step before it starts, with the cell that it may cost
    telemetry: Telemetry
    stopwatches: dict[str, latency.Stopwatch]

    @property
    def device_type(self) -> str:
        """cuda or cpu."""
        return self.device.split(":")[0]


@dataclass
class _Timed:
    """A cell on its way through the rounds."""

    cell: Cell
    samples: dict[str, list[float]] = field(default_factory=dict)
    flags: dict[str, set[str]] = field(default_factory=dict)
    windows: list[tuple[float, float]] = field(default_factory=list)


def run_case(bench: Bench, case: Case, cells: Iterable[Cell]) -> None:
    """Measure the given cells of a case and emit every number and status. Raises ContextBroken (see there)."""
    _CaseRun(bench, case, list(cells)).run()


class _CaseRun:
    def __init__(self, bench: Bench, case: Case, cells: list[Cell]) -> None:
        self.bench, self.case = bench, case
        self.live = cells  # without a status yet
        self.inputs: Inputs | None = None
        self.oracle: correctness.Oracle | None = None

    def run(self) -> None:
        """Reference, checks, memory, rounds."""
        self._skip_what_the_interpreter_cannot()
        if self.live:
            self._attempt(None, self.live, "float64 reference", self._prepare)
        for name in dict.fromkeys(cell.implementation for cell in self.live):
            self._check(name)
        self.oracle = None
        for cell in list(self.live):
            if cell.mode in MODES_WITH_MEMORY:
                self._attempt(cell, [cell], "memory", lambda cell=cell: self._memory(cell))
        if self.live:
            self._rounds()

    def _prepare(self) -> None:
        self.inputs = make_inputs(self.case, self.bench.device, self.bench.seed)
        tf32 = any(self._uses_tf32(cell.implementation) for cell in self.live)
        self.oracle = correctness.make_oracle(self.inputs, self.case, self.bench.seed, tf32=tf32)

    def _attempt(self, cell: Cell | None, charged: list[Cell], step: str, action: Callable[[], Any]) -> None:
        """Do a step; if it raises, the charged cells get the status and leave the case."""
        charged = list(charged)
        self.bench.begin(cell, step)
        try:
            action()
            return
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is a result: a status with its reason
            status, note = faults.describe(error)
        gc.collect()
        self._fail(charged, status, f"{note} (in its {step})" if status is Status.ERROR else note)
        if self.bench.device_type == "cuda":
            if faults.context_is_broken():
                raise ContextBroken(note)
            torch.cuda.empty_cache()

    def _fail(self, cells: Iterable[Cell], status: Status, note: str) -> None:
        for cell in cells:
            for row in without_number(self.bench.run_id, cell, self.bench.timings, status, note):
                self.bench.emit(row)
            if status is Status.OOM and cell.mode in MODES_WITH_MEMORY:
                self._emit(cell.implementation, cell.mode, "peak_memory_mb", status=status, note=note)
            self.live.remove(cell)

    def _skip_what_the_interpreter_cannot(self) -> None:
        for cell in list(self.live):
            if is_interpreted(registry.get(cell.implementation), self.bench.device_type):
                reason = interpreter_reason(cell)
                if reason:
                    self._fail([cell], Status.SKIPPED, reason)

    # the check

    def _check(self, name: str) -> None:
        cells = {cell.mode: cell for cell in self.live if cell.implementation == name}
        first = next(iter(cells.values()))
        forward, gradients = cells.get("fwd", first), cells.get("bwd", cells.get("fwd_bwd"))
        self._attempt(forward, list(cells.values()), "check of the forward", lambda: self._check_forward(name, cells))
        needing = [cell for cell in self.live if cell.implementation == name and cell.mode != "fwd"]
        if needing:
            self._attempt(gradients, needing, "check of the backward", lambda: self._check_backward(name, needing))
        if is_interpreted(registry.get(name), self.bench.device_type):
            self._fail([cell for cell in self.live if cell.implementation == name], Status.SKIPPED, NOT_TIMED)

    def _check_forward(self, name: str, cells: dict[str, Cell]) -> None:
        verdict = self._verdict(name, correctness.check_forward)
        self._emit_errors(name, "fwd", verdict)
        if verdict.reason:
            self._fail(list(cells.values()), Status.INCORRECT, verdict.reason)

    def _check_backward(self, name: str, cells: list[Cell]) -> None:
        verdict = self._verdict(name, correctness.check_backward)
        self._emit_errors(name, "bwd", verdict)
        if verdict.reason:
            self._fail(cells, Status.INCORRECT, verdict.reason)

    def _verdict(self, name: str, check: Callable[..., correctness.Verdict]) -> correctness.Verdict:
        implementation = registry.get(name)
        interpreted = is_interpreted(implementation, self.bench.device_type)
        subject = Subject(implementation.attention, self.inputs, self.case)
        return check(subject, self.oracle, tf32=self._uses_tf32(name), warm=not interpreted)

    def _uses_tf32(self, name: str) -> bool:
        return registry.get(name).tf32 and self.case.dtype == "float32"

    def _emit_errors(self, name: str, mode: str, verdict: correctness.Verdict) -> None:
        for tensor, error in verdict.errors.items():
            for metric, value in ((f"error_{tensor}", error.relative), (f"max_error_{tensor}", error.largest)):
                if math.isfinite(value):
                    self._emit(name, mode, metric, value=value, statistic="single", n=1)
                else:
                    self._emit(name, mode, metric, status=Status.INCORRECT, note=verdict.reason)
        if verdict.first_ms is not None and not verdict.reason:
            cost = max(0.0, verdict.first_ms - verdict.warm_ms)
            self._emit(name, mode, "compile_ms", value=cost, statistic="single", n=1)

    # memory

    def _memory(self, cell: Cell) -> None:
        if self.bench.device_type != "cuda":
            for metric in ("peak_memory_mb", "extra_memory_mb"):
                self._emit(cell.implementation, cell.mode, metric, status=Status.SKIPPED, note=memory.NO_MEMORY_ON_CPU)
            return
        found = memory.peak_memory(self._subject(cell), self.inputs, cell.mode)
        self._emit(cell.implementation, cell.mode, "peak_memory_mb", value=found.peak, statistic="single", n=1)
        self._emit(cell.implementation, cell.mode, "extra_memory_mb", value=found.extra, statistic="single", n=1)

    # latency

    def _rounds(self) -> None:
        latency.preheat(self.bench.device, _BRIEF_PREHEAT_S)
        timed = [_Timed(cell) for cell in self.live]
        for number in range(self.bench.protocol.rounds):
            order = [item for item in timed if item.cell in self.live]
            random.Random(f"{self.bench.seed}/{self.case}/{number}").shuffle(order)
            for item in order:
                step = f"timing, round {number + 1} of {self.bench.protocol.rounds}"
                self._attempt(item.cell, [item.cell], step, lambda item=item: self._sample(item))
        for item in timed:
            if item.cell in self.live:
                self._emit_latency(item)

    def _sample(self, item: _Timed) -> None:
        start = time.monotonic()
        call = self._subject(item.cell).call(item.cell.mode)
        for timing in self.bench.timings:
            stopwatch = self.bench.stopwatches.get(timing)
            if stopwatch is None:
                continue
            series = item.samples.setdefault(timing, [])
            series += latency.sample_round(stopwatch, call, series, self.bench.protocol)
            if stopwatch.flag:
                item.flags.setdefault(timing, set()).add(stopwatch.flag)
        item.windows.append((start, time.monotonic()))

    def _emit_latency(self, item: _Timed) -> None:
        findings = self.bench.telemetry.findings(item.windows)
        for timing in self.bench.timings:
            if timing in item.samples:
                self._emit_timing(item, timing, findings)
            else:
                self._emit_of(item.cell, timing=timing, status=Status.SKIPPED, note=NO_KERNEL_TIME)
        self.live.remove(item.cell)

    def _emit_timing(self, item: _Timed, timing: str, findings: Findings) -> None:
        flags = (*sorted(item.flags.get(timing, ())), *findings.flags)
        self._emit_of(item.cell, timing=timing, note=findings.note, flags=flags, **spread(item.samples[timing]))

    def _emit_of(self, cell: Cell, *, timing: str, **fields: Any) -> None:
        self._emit(cell.implementation, cell.mode, "latency_ms", timing=timing, **fields)

    def _emit(self, name: str, mode: str, metric: str, *, status: Status = Status.OK, **fields: Any) -> None:
        self.bench.emit(
            Measurement(
                run_id=self.bench.run_id,
                case=self.case,
                implementation=name,
                mode=mode,
                metric=metric,
                status=status,
                time=utc_now(),
                **fields,
            )
        )

    def _subject(self, cell: Cell) -> Subject:
        return Subject(registry.get(cell.implementation).attention, self.inputs, self.case)
