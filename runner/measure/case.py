"""Measures the cells of one case: check, memory, then interleaved rounds of timing. The one place where an exception
of a kernel becomes a status."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels import registry
from results.records import Case, Measurement, Status, case_to_json
from runner.cells import MODES_WITH_MEMORY, Cell, utc_now, without_number
from runner.machine.telemetry import Telemetry
from runner.measure import check as correctness
from runner.measure import errors, memory, stopwatch, triton_hooks
from runner.measure.energy import EnergyMeter
from runner.measure.inputs import Inputs, Subject, make_inputs
from runner.measure.timing import Rounds
from runner.overhead import COMPILING, Costs
from runner.plan import NOT_TIMED, interpreter_reason, is_interpreted, too_long_for_cpu
from runner.protocol import Protocol

CACHED = "cached"  # of a compile time: the kernels were on disk already
FAILS_THE_CHECK = "incorrect"  # of the errors of a pass that is too far off to be timed; the note says which tensor


class ContextBroken(RuntimeError):
    """A fault has poisoned this process's CUDA context; its cell has its status, a new process must do the rest."""


@dataclass
class Bench:
    """What a worker keeps from case to case."""

    run_id: str
    device: str
    protocol: Protocol
    timings: tuple[str, ...]  # none: only the errors are wanted
    seed: int
    emit: Callable[[Measurement], None]
    begin: Callable[[Cell | None, str], None]  # announces a step before it starts, with the cell that it may cost
    telemetry: Telemetry
    stopwatches: dict[str, stopwatch.Stopwatch]
    energy: EnergyMeter | None = None  # None without a counter
    costs: Costs = field(default_factory=Costs)
    configs: dict[tuple[Any, ...], str] = field(default_factory=dict)  # what implementations chose, by shape and pass

    @property
    def device_type(self) -> str:
        """cuda or cpu."""
        return self.device.split(":")[0]


def run_case(bench: Bench, case: Case, cells: Iterable[Cell]) -> None:
    """Measure the given cells of a case and emit every number and status. Raises ContextBroken (see there)."""
    CaseRun(bench, case, list(cells)).run()


class CaseRun:
    """The cells of one case on their way; those in `live` have no status yet."""

    def __init__(self, bench: Bench, case: Case, cells: list[Cell]) -> None:
        self.bench, self.case = bench, case
        self.live = cells
        self.inputs: Inputs | None = None
        self.oracle: correctness.Oracle | None = None

    def run(self) -> None:
        """Reference, checks, memory, rounds."""
        costs = self.bench.costs
        if self.bench.device_type == "cuda":
            with costs.of("memory"):  # whose passes would otherwise look for garbage in all that is loaded by now
                gc.collect()
                gc.freeze()
        self._skip_what_takes_too_long()
        if self.live:
            with costs.of("reference"):
                self.attempt(None, self.live, "float64 reference", self._prepare)
        with costs.of("checks"):
            for name in dict.fromkeys(cell.implementation for cell in self.live):
                self._check(name)
        self.oracle = None
        if not self.bench.timings:
            self.live.clear()  # their errors are what was wanted
        with costs.of("memory"):
            for cell in list(self.live):
                if cell.mode in MODES_WITH_MEMORY:
                    self.attempt(cell, [cell], "memory", lambda cell=cell: self._memory(cell))
        if self.live:
            with costs.of("timing"):
                Rounds(self).take()

    def attempt(
        self, cell: Cell | None, charged: list[Cell], step: str, action: Callable[[], Any]
    ) -> tuple[Status, str] | None:
        """Do a step; if it raises, the charged cells get the status and leave the case, and it is the answer."""
        charged = list(charged)
        self.bench.begin(cell, step)
        try:
            action()
            return None
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is a result: a status with its reason
            status, note = errors.describe(error)
        gc.collect()
        note = f"{note} (in its {step})" if status is Status.ERROR else note
        self._fail(charged, status, note)
        if self.bench.device_type == "cuda":
            if errors.context_is_broken():
                raise ContextBroken(note)
            torch.cuda.empty_cache()
        return status, note

    def emit(self, cell: Cell, metric: str, **fields: Any) -> None:
        """A row of a cell, with the configuration that its implementation chose."""
        self._emit(cell.implementation, cell.mode, metric, **fields)

    def subject(self, cell: Cell) -> Subject:
        """The cell's implementation at work on the case's inputs."""
        return Subject(registry.get(cell.implementation).attention, self.inputs, self.case)

    def _prepare(self) -> None:
        self.inputs = make_inputs(self.case, self.bench.device, self.bench.seed)
        precisions = {self._precision(cell.implementation) for cell in self.live}
        backward = any(cell.mode != "fwd" for cell in self.live)
        self.oracle = correctness.make_oracle(self.inputs, self.case, self.bench.seed, precisions, backward=backward)

    def _fail(self, cells: Iterable[Cell], status: Status, note: str) -> None:
        for cell in cells:
            for row in without_number(self.bench.run_id, cell, self.bench.timings, status, note):
                self.bench.emit(row)
            if status is Status.OOM and cell.mode in MODES_WITH_MEMORY:
                self.emit(cell, "peak_memory_mb", status=status, note=note)
            self.live.remove(cell)

    def _skip_what_takes_too_long(self) -> None:
        if self.bench.device_type != "cpu":
            return
        if not self.bench.timings and (note := too_long_for_cpu(self.case)):
            self._fail(list(self.live), Status.SKIPPED, note)
        for cell in list(self.live):
            if is_interpreted(registry.get(cell.implementation), "cpu") and (reason := interpreter_reason(cell)):
                self._fail([cell], Status.SKIPPED, reason)

    def _check(self, name: str) -> None:
        cells = {cell.mode: cell for cell in self.live if cell.implementation == name}
        first = next(iter(cells.values()))
        forward, gradients = cells.get("fwd", first), cells.get("bwd", cells.get("fwd_bwd"))
        self.attempt(forward, list(cells.values()), "check of the forward", lambda: self._check_forward(name, cells))
        needing = [cell for cell in self.live if cell.implementation == name and cell.mode != "fwd"]
        if needing:
            self.attempt(gradients, needing, "check of the backward", lambda: self._check_backward(name, needing))
        if self.bench.timings and is_interpreted(registry.get(name), self.bench.device_type):
            self._fail([cell for cell in self.live if cell.implementation == name], Status.SKIPPED, NOT_TIMED)

    def _check_forward(self, name: str, cells: dict[str, Cell]) -> None:
        verdict = self._verdict(name, "fwd", correctness.check_forward)
        if verdict.reason and self.bench.timings:
            self._fail(list(cells.values()), Status.INCORRECT, verdict.reason)

    def _check_backward(self, name: str, cells: list[Cell]) -> None:
        verdict = self._verdict(name, "bwd", correctness.check_backward)
        if verdict.reason and self.bench.timings:
            self._fail(cells, Status.INCORRECT, verdict.reason)

    def _verdict(self, name: str, mode: str, check: Callable[..., correctness.Verdict]) -> correctness.Verdict:
        implementation = registry.get(name)
        interpreted = is_interpreted(implementation, self.bench.device_type)
        subject = Subject(implementation.attention, self.inputs, self.case)
        watching = (
            triton_hooks.watch() if self.bench.device_type == "cuda" else contextlib.nullcontext(triton_hooks.Seen())
        )
        with watching as seen:
            verdict = check(subject, self.oracle, self._precision(name), warm=not interpreted)
        if seen.config:
            self.bench.configs[self._plan_key(name, mode)] = seen.config
        self._emit_errors(name, mode, verdict)
        self._emit_compile_time(name, mode, verdict, seen)
        return verdict

    def _precision(self, name: str) -> str | None:
        """What an implementation rounds to where that is not the dtype of the case."""
        return registry.get(name).precision

    def _plan_key(self, name: str, mode: str) -> tuple[Any, ...]:
        """What an implementation chooses by: everything but the data; a backward also runs its own forward."""
        shape = (value for field_name, value in case_to_json(self.case).items() if field_name != "inputs")
        return name, mode == "fwd", *shape

    def _emit_errors(self, name: str, mode: str, verdict: correctness.Verdict) -> None:
        flags = (FAILS_THE_CHECK,) if verdict.reason else ()
        for tensor, error in verdict.errors.items():
            for metric, value in ((f"error_{tensor}", error.relative), (f"max_error_{tensor}", error.largest)):
                if math.isfinite(value):
                    note = {"note": verdict.reason, "flags": flags}
                    self._emit(name, mode, metric, value=value, statistic="single", n=1, **note)
                else:
                    self._emit(name, mode, metric, status=Status.INCORRECT, note=verdict.reason)

    def _emit_compile_time(self, name: str, mode: str, verdict: correctness.Verdict, seen: triton_hooks.Seen) -> None:
        if verdict.first_ms is None or verdict.reason:
            return
        cost = max(0.0, verdict.first_ms - verdict.warm_ms)
        self.bench.costs.move(cost / 1e3, "checks", COMPILING)
        fields: dict[str, Any] = {}
        if seen.loaded:
            fields["flags"] = (CACHED,)
            fields["note"] = f"{seen.loaded} of {seen.loaded + seen.compiled} kernels came from Triton's cache on disk."
        self._emit(name, mode, "compile_ms", value=cost, statistic="single", n=1, **fields)

    def _memory(self, cell: Cell) -> None:
        if self.bench.device_type != "cuda":
            for metric in ("peak_memory_mb", "extra_memory_mb"):
                self.emit(cell, metric, status=Status.SKIPPED, note=memory.NO_MEMORY_ON_CPU)
            return
        found = memory.memory_of_call(self.subject(cell), self.inputs, cell.mode)
        for metric, value in (
            ("inputs_memory_mb", found.inputs),
            ("peak_memory_mb", found.peak),
            ("extra_memory_mb", found.extra),
            ("reserved_memory_mb", found.reserved),
            ("activation_memory_mb", found.saved),
        ):
            if value is not None:
                self.emit(cell, metric, value=value, statistic="single", n=1)

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
                config=self.bench.configs.get(self._plan_key(name, mode)),
                **fields,
            )
        )
