"""A sweep to be measured, and the exceptions that end it early. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.cells import Cell
from runner.sweeps import Sweep

if TYPE_CHECKING:
    from runner.supervise.other_version import OtherVersion


class Refused(ValueError):
    """The sweep cannot be started with these options; the message says what is possible."""


class Cancelled(Exception):
    """The sweep was canceled; the arguments are the runs that can be resumed."""


class SweepFailed(RuntimeError):
    """The sweep cannot go on; its measurements are kept."""


@dataclass(frozen=True)
class Job:
    """What to measure, where, and how."""

    sweep: Sweep
    device: str | None = None  # None: the first GPU, or else the CPU
    implementations: tuple[str, ...] | None = None  # None: the sweep's own
    capabilities: tuple[str, ...] = ()  # implementations that do not declare all of these are left out
    protocol: str = "standard"
    seed: int = 0
    run_id: str | None = None  # None: a new name
    resume: str | None = None  # name of the run to resume
    step_limit_s: float | None = None  # None: derived from the estimates
    peaks: bool = True  # whether the device's peaks are measured first
    claims: str | None = None  # folder in which supervisors on one host divide the compiling
    against: OtherVersion | None = None  # other version to measure in the same rounds
    files: tuple[str, ...] = ()  # kinds of files recorded for every cell: profile, snapshot
    command: Callable[[str], str] = lambda device: ""  # command line that repeats the run on a device
    order: Callable[[list[list[Cell]]], Iterable[list[Cell]]] = iter  # puts the cases, each a list of cells, in order
