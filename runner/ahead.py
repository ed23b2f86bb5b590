"""Compiling before a sweep, as the supervisor sees it: a process that helps if it can and never holds a sweep up for
long. No torch."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.cells import Cell, cell_to_json
from runner.job import Cancelled
from runner.workerprocess import Log, WorkerProcess, describe_exit

COMMAND = (sys.executable, "-m", "runner.rehearsal")
LIMIT_S = 180.0
_POLL_S = 0.05
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of the driver on Linux and in WSL


def begin(device: str | None, command: tuple[str, ...] = COMMAND) -> Ahead | None:
    """Start it, so that it is loaded when it is needed; None where there is no GPU, or no Triton to compile for it."""
    gpu = device != "cpu" and any(Path(file).exists() for file in _GPU_FILES)
    return Ahead(command) if gpu and importlib.util.find_spec("triton") else None


class Ahead:
    """The process that compiles."""

    def __init__(self, command: tuple[str, ...], limit_s: float = LIMIT_S) -> None:
        self._log, self._limit_s = Log(), limit_s
        self._process: WorkerProcess | None = WorkerProcess(command, self._log)

    def compile(
        self, cells: Sequence[Cell], device: str, stop: Callable[[], bool], tell: Callable[[int, int], object]
    ) -> str:
        """Let it compile what these cells will launch, and end it; returns what came of it, in a sentence.

        `tell` hears how many kernels of how many are done. Raises Cancelled if `stop` says so, and nothing else.
        """
        begun = time.monotonic()
        try:
            self._process.send({"device": device, "cells": [cell_to_json(cell) for cell in cells]})
            while time.monotonic() - begun < self._limit_s:
                if stop():
                    raise Cancelled
                message = self._process.receive(_POLL_S)
                if message and message["event"] == "rehearsed":
                    return _sentence(message, time.monotonic() - begun)
                if message:
                    tell(message["done"], message["found"])
        except EOFError:
            how = describe_exit(self._process.exit_code(), self._log.last_words())
            return f"Nothing was compiled ahead, each kernel is compiled when it is first needed. {how}"
        finally:
            self.end()
        return f"Compiling ahead was given up after {self._limit_s:.0f} s."

    def end(self) -> None:
        """It, its processes and what it held of the GPU are gone after this."""
        if self._process:
            self._process.end()
        self._process = None


def _sentence(message: dict[str, object], wall_s: float) -> str:
    words = "Compiled {kernels} kernels ahead in {wall:.1f} s, {seconds:.1f} s of work side by side."
    failed = " {failed} could not be: {fault}" if message["failed"] else ""
    return (words + failed).format(wall=wall_s, **message)
