"""Two workers that measure two versions of the kernels in one sweep, with the interface of one worker. No torch.

Both run on the same device for the whole sweep, and only one works at a time. Before each round of each cell a worker
waits for its turn; the turns go A B in one round and B A in the next, so that the state of the machine affects both in
the same way. Names of the other version's implementations end in @ and its label.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.compare.against import leave_open
from results.compare.between_rounds import PairOfRounds, RoundMedians
from results.implementations import version_name
from results.records import CASE_FIELDS
from runner.cells import Cell
from runner.supervise.job import Job, Refused
from runner.supervise.worker_handle import Log, Waiting, WorkerHandle

OWN = "own"  # family of the implementations that differ between two versions
CUT_OFF = "The run was cut off between the two versions of this cell, and only the same rounds can be compared."
_DONE = "case_done"
_TAKEN_FROM_OURS = ("device", "environment", "ahead", "compiled_ahead")
_RECORDED = ("kernel_hash", "torch", "triton", "cuda", "cudnn", "python")  # recorded about the other version


@dataclass
class _Side:
    """One of the two workers, with its position in the case."""

    handle: WorkerHandle
    label: str = ""  # empty for the kernels of this checkout
    at: list[float] | None = None  # round and rank of its next turn; None: it has finished the case
    rounds: dict[tuple[int, str], RoundMedians] = field(default_factory=dict)  # so far, by number in the run and timing
    numbers: dict[int, int] = field(default_factory=dict)  # by number of a cell in the run its number in this worker

    def name(self, implementation: str) -> str:
        """Return the name of an implementation in the run."""
        return version_name(implementation, self.label)

    def number_in_run(self, number: int) -> int:
        """Return the number in the run of a cell of this worker."""
        return next(in_run for in_run, own in self.numbers.items() if own == number)


class PairedWorkers:
    """Both workers behind the interface of a WorkerHandle."""

    def __init__(
        self, job: Job, commands: tuple[tuple[str, ...], tuple[str, ...]], waiting: Waiting, tree: Path
    ) -> None:
        self.log, self.waiting = Log(), waiting
        self._job = job
        self._ours = _Side(WorkerHandle(job, commands[0], waiting, log=self.log))
        whole = replace(job.sweep, implementations=job.implementations or job.sweep.implementations)
        # Implementations that the other version lacks become cells with a reason there, and are not refused by name.
        theirs = replace(job, sweep=whole, implementations=None, capabilities=())
        self._other = _Side(WorkerHandle(theirs, commands[1], waiting, log=self.log, place=tree))
        self._sides = (self._ours, self._other)
        self._speaking = self._ours
        self._script: Iterator[dict[str, Any]] = iter(())
        self._deadline = 0.0
        self._pairs: dict[str, list[PairOfRounds]] = {}  # of all cases so far, by timing

    @property
    def present(self) -> bool:
        """Return whether both workers exist."""
        return all(side.handle.present for side in self._sides)

    def open(self, *, ahead: bool = False) -> dict[str, Any]:
        """Start both workers and return an answer with the cells of both.

        Raises Refused, EOFError, TimeoutError or Cancelled.
        """
        for side in self._sides:
            side.handle.begin(ahead=ahead, turns=True)
        answers = [self._opened(side) for side in self._sides]
        ours, theirs = answers
        self._other.label = self._job.against.label(
            theirs["environment"]["kernel_hash"] or "", theirs["environment"].get("torch")
        )
        return {name: ours[name] for name in _TAKEN_FROM_OURS} | self._merged(ours, theirs)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the workers that it concerns; `receive` returns the answers."""
        if message["do"] == "case":
            self._script = self._case(message)
        elif message["do"] == "compile":
            self._script = self._one_after_the_other(message, "rehearsed")
        else:
            self._script = self._one_after_the_other({**message, "companions": 1}, "started")

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message of either worker. Raises EOFError, TimeoutError or Cancelled."""
        self._deadline = deadline
        return next(self._script)

    def describe_loss(self) -> str:
        """Return a sentence on how the lost worker ended, and stop both."""
        which = "The other version's worker" if self._speaking is self._other else "This version's worker"
        how = self._speaking.handle.describe_loss()
        self.kill()
        return how.replace("The worker", which, 1)

    def kill(self, *, grace_s: float = 0.0) -> None:
        """Stop both, by SIGTERM first if there is a grace period."""
        for side in self._sides:
            side.handle.kill(grace_s=grace_s)

    def close(self) -> None:
        """Ask both to end."""
        for side in self._sides:
            side.handle.close()

    def _opened(self, side: _Side) -> dict[str, Any]:
        self._speaking = side
        try:
            return side.handle.opened()
        except Refused as refusal:
            whose = "The other version: " if side is self._other else ""
            raise Refused(f"{whose}{refusal}") from None

    def _merged(self, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        """Return the combined answer.

        Only implementations that the versions can differ in are measured, unless implementations were named or the
        environments differ.
        """
        every = bool(self._job.implementations) or bool(self._job.against.python)
        facts = theirs["implementations"] | ours["implementations"]
        names = [n for n in ours["sweep"]["implementations"] if every or facts.get(n, {}).get("family") == OWN]
        if not names:
            raise Refused(
                f"Sweep {self._job.sweep.name!r} has no implementation of ours that two versions could differ in; "
                "name some by --implementations."
            )
        labelled = {
            self._other.name(name): {**facts, "colour": None, "version_of": name}
            for name, facts in theirs["implementations"].items()
            if name in names
        }
        against = {name: theirs["environment"].get(name) for name in _RECORDED}
        return {
            "sweep": ours["sweep"] | {"implementations": names},
            "implementations": {name: ours["implementations"][name] for name in names} | labelled,
            "against": against | {"label": self._other.label, "git_commit": self._job.against.commit},
            "cells": self._interleaved(ours["cells"], theirs["cells"], names),
        }

    def _one_after_the_other(self, message: dict[str, Any], last: str) -> Iterator[dict[str, Any]]:
        """Send a message to our worker, then to the other one; our final answer comes last."""
        answers: list[dict[str, Any]] = []
        for side in self._sides:
            only_once = {"peaks": False} if answers and "peaks" in message else {}
            self._tell(side, self._for(side, message) | only_once)
            while (answer := self._hear(side))["event"] != last:
                yield answer
            answers.append(answer)
        yield answers[0]

    def _case(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Let both check the case and then take turns in its rounds; release their numbers at the end."""
        rows: list[dict[str, Any]] = []
        costs: Counter[str] = Counter()
        for side in self._sides:
            side.at = None
            mine = self._for(side, message)
            if mine["cells"]:
                self._tell(side, mine)
                yield from self._until_its_turn(side, rows, costs)
        while waiting := [side for side in self._sides if side.at]:
            now = min(side.at for side in waiting)
            due = [side for side in waiting if side.at == now]
            more = self._undecided()
            for side in reversed(due) if int(now[0]) % 2 else due:
                self._tell(side, self._for(side, {"do": "go"} | ({"more": more} if more else {})))
                yield from self._until_its_turn(side, rows, costs)
        names = ("implementation", "mode", "metric")  # so that those of both versions follow each other
        yield from sorted(rows, key=lambda row: [str(row["record"][name]) for name in names])
        yield {"event": _DONE, "costs": dict(costs)}

    def _until_its_turn(self, side: _Side, rows: list[dict[str, Any]], costs: Counter[str]) -> Iterator[dict[str, Any]]:
        """Pass on what a worker says until its turn or its end, but collect rows and costs."""
        while (answer := self._hear(side))["event"] not in ("turn", _DONE):
            if answer["event"] == "measurement":
                answer["record"]["implementation"] = side.name(answer["record"]["implementation"])
                answer["record"].pop("measurement_id", None)
                rows.append(answer)
                continue
            if answer.get("cell") is not None:
                answer["cell"] = side.number_in_run(answer["cell"])
            yield answer
        side.at = answer.get("at")
        medians = answer.get("medians", ())
        side.rounds = {
            (side.number_in_run(cell), timing): RoundMedians(tuple(logs), True) for cell, timing, logs in medians
        }
        costs.update(answer.get("costs", {}))

    def _for(self, side: _Side, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with the cells of that side only, by the side's numbers."""
        named = {name: message[name] for name in ("cells", "more") if name in message}
        return message | {
            name: [side.numbers[cell] for cell in cells if cell in side.numbers] for name, cells in named.items()
        }

    def _undecided(self) -> list[int]:
        """Return the cells of both sides without a verdict; none before both have reported the rounds of a case."""
        found: set[int] = set()
        for timing in {timing for _, timing in self._ours.rounds}:
            both = {
                number: (after, self._other.rounds[number + 1, timing])
                for (number, of), after in self._ours.rounds.items()
                if of == timing and (number + 1, timing) in self._other.rounds
            }
            found.update(leave_open(both, self._pairs.setdefault(timing, [])))
        return [each for number in sorted(found) for each in (number, number + 1)]

    def _interleaved(
        self, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], names: list[str]
    ) -> list[dict[str, Any]]:
        """Return the cells of both, each of ours followed by the other version's, and note their numbers."""
        others = {_key(cell): number for number, cell in enumerate(theirs)}
        cells: list[dict[str, Any]] = []
        for number, cell in enumerate(ours):
            if cell["implementation"] not in names:
                continue
            self._ours.numbers[len(cells)] = number
            cells.append(cell)
            other = others.get(_key(cell))
            if other is not None:
                self._other.numbers[len(cells)] = other
                cells.append(theirs[other] | {"implementation": self._other.name(cell["implementation"])})
        return cells

    def _tell(self, side: _Side, message: dict[str, Any]) -> None:
        self._speaking = side
        side.handle.send(message)

    def _hear(self, side: _Side) -> dict[str, Any]:
        self._speaking = side
        return side.handle.receive(self._deadline)


def cut_in_half(cells: list[Cell], left: Mapping[Cell, object]) -> list[Cell]:
    """Return the cells of a resumed run without a status whose other version has one, so that they cannot be paired."""
    done = {(cell.case, cell.implementation, cell.mode) for cell in cells if cell not in left and not cell.reason}
    labels = {cell.implementation.partition("@")[2] for cell in cells} - {""}

    def partner(cell: Cell) -> str:
        name, _, label = cell.implementation.partition("@")
        return name if label else version_name(name, next(iter(labels)))

    return [cell for cell in left if labels and (cell.case, partner(cell), cell.mode) in done]


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the cells of both versions have in common; an older version does not know every field."""
    return *(cell.get(name) for name in CASE_FIELDS), cell["implementation"], cell["mode"]
