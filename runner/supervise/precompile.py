"""Compiling before a sweep, as the supervisor sees it: it helps if it can, and never fails a sweep. No torch."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.cells import Cell, cell_to_json
from runner.supervise.worker_handle import WorkerHandle

SILENCE_S = 60.0  # the longest that a kernel may take to compile, or the search for all of them
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of the driver on Linux and in WSL


def is_possible(device: str | None) -> bool:
    """Return whether there seem to be a GPU and Triton to compile for it; neither is asked, which takes seconds."""
    gpu = device != "cpu" and any(Path(file).exists() for file in _GPU_FILES)
    return gpu and importlib.util.find_spec("triton") is not None


def compile_ahead(
    handle: WorkerHandle, cells: Sequence[Cell], tell: Callable[[int, int], object], claims: str | None = None
) -> str:
    """Let the worker compile what these cells will launch; returns what came of it, in a sentence.

    `tell` hears how many kernels of how many are done. `claims` is the folder in which sweeps of one host share the
    work out. Raises Cancelled, and nothing else: a worker that is lost over
    this is gone, and its successor compiles as it goes.
    """
    begun = time.monotonic()
    try:
        handle.send({"do": "compile", "cells": [cell_to_json(cell) for cell in cells], "claims": claims})
        while (message := handle.receive(time.monotonic() + SILENCE_S))["event"] == "compiled":
            tell(message["done"], message["found"])
        return _sentence(message, time.monotonic() - begun)
    except EOFError:
        return f"Nothing was compiled ahead. {handle.describe_loss()}"
    except TimeoutError:
        handle.kill()
        return f"Compiling ahead was given up after {SILENCE_S:.0f} s without progress."


def _sentence(message: dict[str, object], wall_s: float) -> str:
    if message["kernels"] is None:
        return "Nothing was compiled ahead, as the process for it came to an end; each kernel is compiled when needed."
    words = "Compiled {kernels} kernels ahead in {wall:.1f} s, {seconds:.1f} s of work side by side."
    failed = " {failed} could not be: {fault}" if message["failed"] else ""
    return (words + failed).format(wall=wall_s, **message)
