"""What a sweep is asked to do, and the ways it can end early. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.cells import Cell
from runner.sweeps import Sweep

if TYPE_CHECKING:
    from runner.supervise.other_version import OtherVersion


class Refused(ValueError):
    """The sweep cannot be started as asked; the message says what is possible."""


class Cancelled(Exception):
    """Somebody asked the sweep to stop; the arguments are the runs that can be resumed."""


class SweepFailed(RuntimeError):
    """The sweep cannot go on; what it has measured is kept."""


@dataclass(frozen=True)
class Job:
    """What to measure, where, and how."""

    sweep: Sweep
    device: str | None = None  # None: the first GPU, or else the CPU
    implementations: tuple[str, ...] | None = None  # None: the sweep's own
    capabilities: tuple[str, ...] = ()  # of these implementations only those that declare all are measured
    protocol: str = "standard"
    seed: int = 0
    run_id: str | None = None  # None: a new name
    resume: str | None = None  # the run to go on with
    step_limit_s: float | None = None  # None: by estimate
    peaks: bool = True  # whether the device's peaks are measured first
    claims: str | None = None  # the folder in which supervisors of one host share out what they compile
    against: OtherVersion | None = None  # what is measured beside it, round by round
    files: tuple[str, ...] = ()  # kinds of files that are recorded of every cell: profile, snapshot
    command: Callable[[str], str] = lambda device: ""  # what repeats the run on that device
    order: Callable[[list[list[Cell]]], Iterable[list[Cell]]] = iter  # of the cases, each given by its cells
