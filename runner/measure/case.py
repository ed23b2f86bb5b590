"""The cells of one case being measured, with the inputs, attempts and rows that every step needs.

This is the only place that turns an exception of a kernel into a status.
"""

import gc
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels import registry
from results.compare.between_rounds import PairOfRounds, RoundMedians
from results.records import Case, Measurement, Status, case_to_json
from runner.cells import Cell, utc_now, without_number
from runner.levels import Call, CaseInputs, MeasuredLevel, level_of, make_inputs
from runner.machine.telemetry import Telemetry
from runner.measure import errors
from runner.measure.check import Oracle
from runner.measure.energy import EnergyMeter
from runner.measure.stopwatch import Stopwatch
from runner.overhead import Costs
from runner.protocol import Protocol


class ContextBroken(RuntimeError):
    """A fault made this process's CUDA context unusable; the cell has its status, and a new process must go on."""


@dataclass
class Bench:
    """The state of a worker that all cases share."""

    run_id: str
    device: str
    protocol: Protocol
    timings: tuple[str, ...]  # empty: only errors are recorded
    seed: int
    emit: Callable[[Measurement], None]
    begin: Callable[[Cell | None, str], None]  # announces a step and the cell that is charged if the step fails
    telemetry: Telemetry
    stopwatches: dict[str, Stopwatch]
    energy: EnergyMeter | None = None  # None without a counter
    # Waits for this worker's turn, given a round, a rank within the round, and the rounds so far by cell and timing;
    # returns the cells whose rounds are to be taken once more. None: there is no other worker.
    turn: Callable[[tuple[int, float], Mapping[tuple[Cell, str], RoundMedians]], Collection[Cell]] | None = None
    pairs: dict[str, list[PairOfRounds]] = field(default_factory=dict)  # of all cases so far, by timing
    files: tuple[str, ...] = ()  # kinds of files recorded for every cell
    run_folder: Path = Path()  # where these files are written
    costs: Costs = field(default_factory=Costs)
    depths: tuple[int, ...] = ()  # numbers of layers for extrapolating models
    extrapolation_errors: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by implementation and mode
    configs: dict[tuple[Any, ...], str] = field(default_factory=dict)  # configurations by shape and pass

    @property
    def device_type(self) -> str:
        """Return cuda or cpu."""
        return self.device.split(":")[0]


class CaseRun:
    """The cells of one case being measured; cells in `live` have no status yet."""

    def __init__(self, bench: Bench, case: Case, cells: list[Cell]) -> None:
        self.bench, self.case = bench, case
        self.live = cells
        self.latencies: dict[tuple[Cell, str], float] = {}  # medians in ms, by cell and timing
        self.oracle: Oracle | None = None  # made for the checks, and used again after timing
        self._inputs: CaseInputs | None = None

    @property
    def level(self) -> MeasuredLevel:
        """Return the level of the case."""
        return level_of(self.case)

    @property
    def inputs(self) -> CaseInputs:
        """Return the tensors of the case, made at the first use."""
        if self._inputs is None:
            self._inputs = make_inputs(self.case, self.bench.device, self.bench.seed)
        return self._inputs

    def forget_inputs(self) -> None:
        """Free the tensors of the case; the next use makes them again."""
        self._inputs = None
        gc.collect()
        if self.bench.device_type == "cuda":
            torch.cuda.empty_cache()

    def implementation(self, name: str) -> registry.Implementation:
        """Return the implementation of that name at the case's level."""
        return self.level.implementations()[name]

    def arguments(self, cell: Cell) -> tuple[Any, CaseInputs, str]:
        """Return what the functions of a level take of a cell: its attention, inputs and mode."""
        return self.implementation(cell.implementation).attention, self.inputs, cell.mode

    def call(self, cell: Cell) -> Call:
        """Return the call of a cell that is timed."""
        return self.level.call(*self.arguments(cell))

    def attempt(
        self, cell: Cell | None, charged: Iterable[Cell], step: str, action: Callable[[], Any]
    ) -> tuple[Status, str] | None:
        """Do a step. If it raises, give the charged cells the status, remove them from the case and return the status.

        Raises ContextBroken if this process cannot go on.
        """
        charged = list(charged)
        self.bench.begin(cell, step)
        failed = errors.failure(action)
        if failed is None:
            return None
        status, note = failed
        gc.collect()
        note = f"{note} (in its {step})" if status is Status.ERROR else note
        self.fail(charged, status, note)
        if self.bench.device_type == "cuda":
            if errors.context_is_broken():
                raise ContextBroken(note)
            torch.cuda.empty_cache()
        return status, note

    def fail(self, cells: Iterable[Cell], status: Status, note: str) -> None:
        """Give cells a status without numbers and remove them from the case."""
        for cell in cells:
            for row in without_number(self.bench.run_id, cell, self.bench.timings, status, note):
                self.bench.emit(row)
            if status is Status.OOM and cell.about_mode.measures_memory:
                self.emit(cell, "peak_memory_mb", status=status, note=note)
            self.live.remove(cell)

    def emit(self, cell: Cell, metric: str, **fields: Any) -> None:
        """Emit a row of a cell."""
        self.emit_pass(cell.implementation, cell.mode, metric, **fields)

    def emit_pass(self, name: str, mode: str, metric: str, *, status: Status = Status.OK, **fields: Any) -> None:
        """Emit a row of an implementation's pass, with its configuration; the plan needs no cell of that mode."""
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
        """Remember the configuration that an implementation uses for cases of this shape in a pass."""
        self.bench.configs[self._plan_key(name, mode)] = config

    def _plan_key(self, name: str, mode: str) -> tuple[Any, ...]:
        """Return the key of a configuration: implementation, whether it is a plain forward, and the shape."""
        shape = (value for field_name, value in case_to_json(self.case).items() if field_name != "inputs")
        return name, mode == "fwd", *shape
