"""The cells of one case under measurement, and what every step of it needs: inputs, attempts, rows.

The one place where an exception of a kernel becomes a status.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels import registry
from results.records import Case, Measurement, Status, case_to_json
from runner.cells import MODES_WITH_MEMORY, Cell, utc_now, without_number
from runner.levels import Call, CaseInputs, MeasuredLevel, level_of, make_inputs
from runner.machine.telemetry import Telemetry
from runner.measure import errors
from runner.measure.check import Oracle
from runner.measure.energy import EnergyMeter
from runner.measure.stopwatch import Stopwatch
from runner.overhead import Costs
from runner.protocol import Protocol


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
    stopwatches: dict[str, Stopwatch]
    energy: EnergyMeter | None = None  # None without a counter
    # waits until another version's worker has had its turn, given the round and a rank within it; None: nobody else
    turn: Callable[[tuple[int, float]], None] | None = None
    files: tuple[str, ...] = ()  # kinds of files that are recorded of every cell, in
    run_folder: Path = Path()
    costs: Costs = field(default_factory=Costs)
    depths: tuple[int, ...] = ()  # from which models are extrapolated
    extrapolation_errors: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by implementation and mode
    configs: dict[tuple[Any, ...], str] = field(default_factory=dict)  # what implementations chose, by shape and pass

    @property
    def device_type(self) -> str:
        """Return cuda or cpu."""
        return self.device.split(":")[0]


class CaseRun:
    """The cells of one case on their way; those in `live` have no status yet."""

    def __init__(self, bench: Bench, case: Case, cells: list[Cell]) -> None:
        self.bench, self.case = bench, case
        self.live = cells
        self.latencies: dict[tuple[Cell, str], float] = {}  # medians in ms, by cell and timing
        self.oracle: Oracle | None = None  # made for the checks, asked again after timing
        self._inputs: CaseInputs | None = None

    @property
    def level(self) -> MeasuredLevel:
        """Return how cases of this level are measured."""
        return level_of(self.case)

    @property
    def inputs(self) -> CaseInputs:
        """Return the tensors of the case, made at the first use."""
        if self._inputs is None:
            self._inputs = make_inputs(self.case, self.bench.device, self.bench.seed)
        return self._inputs

    def forget_inputs(self) -> None:
        """Free the tensors of the case; the next use makes them anew."""
        self._inputs = None
        gc.collect()
        if self.bench.device_type == "cuda":
            torch.cuda.empty_cache()

    def implementation(self, name: str) -> registry.Implementation:
        """Return the implementation of that name at the case's level."""
        return registry.get(name, str(self.case.level))

    def call(self, cell: Cell) -> Call:
        """Return what is timed of a cell."""
        return self.level.call(self.implementation(cell.implementation).attention, self.inputs, cell.mode)

    def inner_call(self, cell: Cell) -> Call | None:
        """Return the attention inside of a cell alone, where its level has something around it."""
        make = getattr(self.level, "inner_call", None)
        return make and make(self.implementation(cell.implementation).attention, self.inputs, cell.mode)

    def device_call(self, cell: Cell, call: Call) -> Call | None:
        """Return what is timed of a cell as `kernel`, which is its call but where the level says otherwise."""
        if not hasattr(self.level, "device_call"):
            return call
        return self.level.device_call(self.implementation(cell.implementation).attention, self.inputs, cell.mode)

    def attempt(
        self, cell: Cell | None, charged: Iterable[Cell], step: str, action: Callable[[], Any]
    ) -> tuple[Status, str] | None:
        """Do a step; if it raises, the charged cells get the status and leave the case, and it is the answer.

        Raises ContextBroken if nothing more can be done in this process.
        """
        charged = list(charged)
        self.bench.begin(cell, step)
        try:
            action()
            return None
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is a result: a status with its reason
            status, note = errors.describe(error)
        gc.collect()
        note = f"{note} (in its {step})" if status is Status.ERROR else note
        self.fail(charged, status, note)
        if self.bench.device_type == "cuda":
            if errors.context_is_broken():
                raise ContextBroken(note)
            torch.cuda.empty_cache()
        return status, note

    def fail(self, cells: Iterable[Cell], status: Status, note: str) -> None:
        """Give cells a status without numbers; they leave the case."""
        for cell in cells:
            for row in without_number(self.bench.run_id, cell, self.bench.timings, status, note):
                self.bench.emit(row)
            if status is Status.OOM and cell.mode in MODES_WITH_MEMORY:
                self.emit(cell, "peak_memory_mb", status=status, note=note)
            self.live.remove(cell)

    def emit(self, cell: Cell, metric: str, **fields: Any) -> None:
        """Emit a row of a cell, with the configuration that its implementation chose."""
        self.emit_pass(cell.implementation, cell.mode, metric, **fields)

    def emit_pass(self, name: str, mode: str, metric: str, *, status: Status = Status.OK, **fields: Any) -> None:
        """Emit a row of an implementation's pass, which needs no cell of its own in the plan."""
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

    def note_config(self, name: str, mode: str, config: str) -> None:
        """Remember what an implementation chose for cases of this shape in a pass."""
        self.bench.configs[self._plan_key(name, mode)] = config

    def _plan_key(self, name: str, mode: str) -> tuple[Any, ...]:
        """Return what an implementation chooses by: all but the data; a backward also runs a forward of its own."""
        shape = (value for field_name, value in case_to_json(self.case).items() if field_name != "inputs")
        return name, mode == "fwd", *shape
