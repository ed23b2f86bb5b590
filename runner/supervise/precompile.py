"""The supervisor's part of compiling ahead of a sweep, which saves time and never fails a sweep. No torch."""

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.supervise.pair import PairedWorkers
from runner.supervise.worker_handle import WorkerHandle

SILENCE_S = 60.0  # time limit for compiling one kernel, and for finding all of them
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # device files of the driver on Linux and in WSL


def is_possible(device: str | None) -> bool:
    """Return whether a GPU and Triton seem to be there, without loading CUDA or Triton, which takes seconds."""
    gpu = device != "cpu" and any(Path(file).exists() for file in _GPU_FILES)
    return gpu and importlib.util.find_spec("triton") is not None


def compile_ahead(
    handle: WorkerHandle | PairedWorkers,
    cells: Sequence[int],
    tell: Callable[[int, int], object],
    claims: str | None = None,
) -> str:
    """Let the worker compile the kernels of the cells with these numbers, and return a sentence on the outcome.

    `tell` gets the number of compiled and of found kernels. `claims` is the folder in which sweeps on one host divide
    the work. Raises Cancelled only: if the worker is lost here, its successor compiles each kernel when needed.
    """
    begun = time.monotonic()
    try:
        handle.send({"do": "compile", "cells": list(cells), "claims": claims})
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
        return "Nothing was compiled ahead, because the process for it ended; each kernel is compiled when needed."
    words = "Compiled {kernels} kernels ahead in {wall:.1f} s, {seconds:.1f} s of work in parallel."
    failed = " {failed} failed: {fault}" if message["failed"] else ""
    return (words + failed).format(wall=wall_s, **message)
