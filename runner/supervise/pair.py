"""Two workers that measure two versions of the kernels in one sweep, spoken to as if they were one. No torch.

Both live on the same device for the whole sweep. Only one works at a time: before each round of each cell a worker
waits for its turn, and the turns go A B in one round and B A in the next. What the machine does to the one it does to
the other, moments later. Implementations of the other version carry its label behind an @.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.implementations import version_name
from results.records import CASE_FIELDS
from runner.cells import Cell
from runner.supervise.job import Job, Refused
from runner.supervise.worker_handle import Log, WorkerHandle

OWN = "own"  # the family of the implementations that differ between two versions
CUT_OFF = "The run was cut off between the two versions of this cell, and only the same rounds can be compared."
_DONE = "case_done"
_TAKEN_FROM_OURS = ("device", "environment", "ahead", "compiled_ahead")
_RECORDED = ("kernel_hash", "torch", "triton", "cuda", "cudnn", "python")  # of the other version's environment


@dataclass
class _Side:
    """One of the two, and where it stands in the case."""

    handle: WorkerHandle
    label: str = ""  # none: the kernels of this checkout
    at: list[float] | None = None  # its next turn, as number of the round and rank in it; None: it is done

    def name(self, implementation: str) -> str:
        """Return an implementation's name as the run has it."""
        return version_name(implementation, self.label)

    def owns(self, implementation: str) -> bool:
        """Return whether a name of the run belongs to this side."""
        return ("@" in implementation) == bool(self.label)


@dataclass
class _CaseRows:
    """What a case has brought so far; it is let go in pairs, once both sides are done."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    costs: Counter[str] = field(default_factory=Counter)

    def in_pairs(self) -> list[dict[str, Any]]:
        """Return the rows such that those of both versions follow each other."""
        return sorted(
            self.rows, key=lambda m: [str(m["record"][name]) for name in ("implementation", "mode", "metric")]
        )


class PairedWorkers:
    """Both workers behind the interface of a WorkerHandle."""

    def __init__(
        self, job: Job, commands: tuple[tuple[str, ...], tuple[str, ...]], stop: Callable[[], bool], tree: Path
    ) -> None:
        self.log = Log()
        self._job = job
        self._ours = _Side(WorkerHandle(job, commands[0], stop, log=self.log))
        whole = replace(job.sweep, implementations=job.implementations or job.sweep.implementations)
        names_left = {"implementations": None, "capabilities": ()}  # what it does not know are cells with a reason
        theirs = replace(job, sweep=whole, **names_left)
        self._other = _Side(WorkerHandle(theirs, commands[1], stop, log=self.log, place=tree))
        self._sides = (self._ours, self._other)
        self._speaking = self._ours
        self._script: Iterator[dict[str, Any]] = iter(())
        self._deadline = 0.0

    @property
    def stop(self) -> Callable[[], bool]:
        """Return what says that the sweep is to stop."""
        return self._ours.handle.stop

    @stop.setter
    def stop(self, asks: Callable[[], bool]) -> None:
        for side in self._sides:
            side.handle.stop = asks

    @property
    def on_wait(self) -> Callable[[], None]:
        """Return what is called now and then while no message comes."""
        return self._ours.handle.on_wait

    @on_wait.setter
    def on_wait(self, does: Callable[[], None]) -> None:
        for side in self._sides:
            side.handle.on_wait = does

    @property
    def present(self) -> bool:
        """Return whether both are there."""
        return all(side.handle.present for side in self._sides)

    def open(self, *, plan: bool, ahead: bool = False) -> dict[str, Any]:
        """Start both and let them find the device; the answer holds the cells of both.

        Raises Refused, EOFError, TimeoutError or Cancelled as WorkerHandle.open does.
        """
        for side in self._sides:
            side.handle.begin(plan=plan, ahead=ahead, turns=True)
        answers = [self._opened(side) for side in self._sides]
        ours, theirs = answers
        self._other.label = self._job.against.label(
            theirs["environment"]["kernel_hash"] or "", theirs["environment"].get("torch")
        )
        return {name: ours[name] for name in _TAKEN_FROM_OURS} | self._merged(ours, theirs)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to whom it concerns; the answers come by `receive`."""
        scripts = {"compile": self._compile, "start": self._start, "case": self._case}
        self._script = scripts[message["do"]](message)

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message of either. Raises EOFError, TimeoutError or Cancelled, as WorkerHandle.receive."""
        self._deadline = deadline
        return next(self._script)

    def describe_loss(self) -> str:
        """Return how the worker that was lost ended; both are gone after this."""
        which = "The other version's worker" if self._speaking is self._other else "This version's worker"
        how = self._speaking.handle.describe_loss()
        self.kill()
        return how.replace("The worker", which, 1)

    def kill(self) -> None:
        """End both at once."""
        for side in self._sides:
            side.handle.kill()

    def close(self) -> None:
        """Let both end by themselves."""
        for side in self._sides:
            side.handle.close()

    def dismiss(self) -> None:
        """End both, whatever they are at."""
        for side in self._sides:
            side.handle.dismiss()

    def _opened(self, side: _Side) -> dict[str, Any]:
        self._speaking = side
        try:
            return side.handle.opened()
        except Refused as refusal:
            whose = "The other version: " if side is self._other else ""
            raise Refused(f"{whose}{refusal}") from None

    def _merged(self, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        """Return what the answers say together: only implementations that the versions can differ in are measured,
        unless they were named or the environments differ."""
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
            "cells": _interleaved(ours["cells"], theirs["cells"], names, self._other.name),
        }

    def _compile(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._one_after_the_other(message, "rehearsed")

    def _start(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._one_after_the_other({**message, "companions": 1}, "started")

    def _one_after_the_other(self, message: dict[str, Any], last: str) -> Iterator[dict[str, Any]]:
        """Let ours do something, then the other; the answer of ours comes last."""
        answers = []
        for side in self._sides:
            only_once = {"peaks": False} if answers and "peaks" in message else {}
            self._tell(side, self._for(side, message) | only_once)
            while (answer := self._hear(side))["event"] != last:
                yield answer
            answers.append(answer)
        yield answers[0]

    def _case(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Let both check the case, then take turns at its rounds; numbers come when both have all of theirs."""
        found = _CaseRows()
        for side in self._sides:
            side.at = None
            mine = self._for(side, message)
            if mine["cells"]:
                self._tell(side, mine)
                yield from self._until_its_turn(side, found)
        while waiting := [side for side in self._sides if side.at]:
            now = min(side.at for side in waiting)
            due = [side for side in waiting if side.at == now]
            for side in reversed(due) if int(now[0]) % 2 else due:
                self._tell(side, {"do": "go"})
                yield from self._until_its_turn(side, found)
        yield from found.in_pairs()
        yield {"event": _DONE, "costs": dict(found.costs)}

    def _until_its_turn(self, side: _Side, found: _CaseRows) -> Iterator[dict[str, Any]]:
        while (answer := self._hear(side))["event"] not in ("turn", _DONE):
            if answer["event"] == "measurement":
                answer["record"]["implementation"] = side.name(answer["record"]["implementation"])
                answer["record"].pop("measurement_id", None)
                found.rows.append(answer)
                continue
            if answer.get("cell"):
                answer["cell"][0] = side.name(answer["cell"][0])
            yield answer
        side.at = answer.get("at")
        found.costs.update(answer.get("costs", {}))

    def _for(self, side: _Side, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with the cells of that side alone, by the names it knows."""
        if "cells" not in message:
            return message
        mine = [cell for cell in message["cells"] if side.owns(cell["implementation"])]
        return message | {"cells": [cell | {"implementation": cell["implementation"].split("@")[0]} for cell in mine]}

    def _tell(self, side: _Side, message: dict[str, Any]) -> None:
        self._speaking = side
        side.handle.send(message)

    def _hear(self, side: _Side) -> dict[str, Any]:
        self._speaking = side
        return side.handle.receive(self._deadline)


def cut_in_half(cells: list[Cell], left: Mapping[Cell, object]) -> list[Cell]:
    """Return the cells of a resumed run that lack a status that their other version has: it is too late to pair."""
    done = {(cell.case, cell.implementation, cell.mode) for cell in cells if cell not in left and not cell.reason}
    labels = {cell.implementation.partition("@")[2] for cell in cells} - {""}

    def partner(cell: Cell) -> str:
        name, _, label = cell.implementation.partition("@")
        return name if label else version_name(name, next(iter(labels)))

    return [cell for cell in left if labels and (cell.case, partner(cell), cell.mode) in done]


def _interleaved(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], names: list[str], named: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Return the cells of both, each of ours followed by the other version's."""

    def key(cell: dict[str, Any]) -> tuple[Any, ...]:
        return *(cell[name] for name in CASE_FIELDS), cell["implementation"], cell["mode"]

    others = {key(cell): cell for cell in theirs}
    cells = []
    for cell in ours:
        if cell["implementation"] in names:
            cells.append(cell)
            with contextlib.suppress(KeyError):
                other = others[key(cell)]
                cells.append(other | {"implementation": named(other["implementation"])})
    return cells
