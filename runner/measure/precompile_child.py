"""Compiles the kernels of a sweep in parallel before anything is measured, in a child process of the worker.

The child makes every call of our kernels in the sweep once with launches disabled, so that Triton receives the same
requests as later and no kernel runs. Processes that do not use the GPU compile these kernels into Triton's cache on
disk, where the worker finds them. Failures here cost time only. Sweeps spread over GPUs of one host divide the work by
claims.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cells import Cell, cell_from_json
from runner.ipc import Channel, both_ends, die_with

if TYPE_CHECKING:
    from runner.levels import MeasuredLevel
    from runner.measure.triton_hooks import Kernel

_NICENESS = 10  # another sweep may be timing on another GPU
_SPARED_CORES = 2  # left for this process and the worker
_PROCESS_BYTES = 1 << 30  # approximate memory of a compiling process
_OTHERS_S = 30.0  # longest wait for the processes of other GPUs
_LOOK_S = 0.05  # seconds between two looks at them
_AT_WORK = "at-work-"  # prefix of the file that exists while a process compiles
# Exceptions that a call may raise here: out of memory, not supported, or a use of the kernel that the stand-in lacks.
_FAULTS = (RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Claims:
    """Divides the compiling of a sweep among the GPUs of one host by files in a folder; the first claim wins.

    Without the folder, this process compiles everything.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None

    def take(self, what: object) -> bool:
        """Claim an object by its `repr`, and return whether no other process has claimed it."""
        if self._folder is None:
            return True
        try:
            words = re.sub(r" at 0x[0-9a-f]+", "", repr(what))  # addresses differ between processes
            (self._folder / hashlib.sha256(words.encode()).hexdigest()).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Show the other processes that this process compiles."""
        mark = self._folder / f"{_AT_WORK}{os.getpid()}" if self._folder else None
        with contextlib.suppress(OSError):
            if mark:
                mark.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if mark:
                    mark.unlink(missing_ok=True)

    def wait_for_others(self, limit_s: float = _OTHERS_S) -> None:
        """Wait until no other process compiles for the same sweep, up to the limit."""
        deadline = time.monotonic() + limit_s
        while self._folder and time.monotonic() < deadline:
            pids = [path.name.removeprefix(_AT_WORK) for path in self._folder.glob(f"{_AT_WORK}*")]
            if not any(Path("/proc", pid).exists() for pid in pids):
                return
            time.sleep(_LOOK_S)


class Helper:
    """A child process that compiles. Create it before CUDA is initialized, which does not survive a fork."""

    def __init__(self, channel_of_parent: Channel) -> None:
        self._channel, there = both_ends()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid:
            there.close()
            return
        self._channel.close()
        channel_of_parent.close()
        try:
            _main(there, parent)
        finally:  # the child must not return into the worker's code
            if sys.exc_info()[0]:
                sys.excepthook(*sys.exc_info())
            os._exit(0)

    def begin(self, device: str, cells: Sequence[dict[str, Any]], claims: str | None = None) -> None:
        """Start compiling the kernels of cells (as JSON), except those claimed by others in the folder `claims`."""
        with contextlib.suppress(BrokenPipeError):
            self._channel.send({"device": device, "cells": cells, "claims": claims})

    def messages(self, meanwhile: Iterator[object]) -> Iterator[dict[str, Any]]:
        """Yield its messages until it ends, and advance `meanwhile` while there is no message."""
        with contextlib.suppress(EOFError):
            while True:
                message = self._channel.receive(0.0)
                if message is None and next(meanwhile, self) is self:  # `meanwhile` is exhausted
                    message = self._channel.receive()
                if message:
                    yield message

    def end(self) -> None:
        """Stop it with the processes that it started."""
        if not self._pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._channel.close()
        self._pid = 0


def rehearse(cells: Iterable[Cell], device: str, takes: Callable[[object], bool] = lambda case: True) -> None:
    """Make the calls of all cells once whose case `takes` accepts, starting with the slowest kernels to compile.

    If a call fails, the remaining calls of its implementation and case are skipped.
    """
    from runner.levels import level_of

    ordered = sorted(cells, key=lambda cell: (-(cell.case.head_dim or 0), cell.case.dtype != "float32"))
    for case, of_case in groupby(ordered, key=lambda cell: cell.case):
        if not takes(case):
            continue
        wanted: dict[str, set[str]] = {}
        for cell in of_case:
            wanted.setdefault(cell.implementation, set()).add(cell.mode)
        with contextlib.suppress(*_FAULTS):
            inputs = level_of(case).empty_inputs(case, device)
            for name, modes in wanted.items():
                with contextlib.suppress(*_FAULTS):
                    _call(level_of(case), name, inputs, modes)
        inputs = None  # free it before the next one, because a cache can fill half the device


def small_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return a small case for each of PyTorch's implementations, dtypes and head dims among the cells.

    Calling it does the initialization that the first call of a library would wait for.
    """
    from runner.levels import level_of

    found: dict[Cell, None] = {}
    for cell in cells:
        level = level_of(cell.case)
        known = level.implementations().get(cell.implementation)
        if known and known.family == "pytorch" and not known.compiled and not cell.reason:
            case = level.small_case(str(cell.case.dtype), cell.case.head_dim)
            found |= {Cell(case, cell.implementation, mode): None for mode in level.passes(case)[-1].modes[-1:]}
    return list(found)


def processes(cores: int, gpus: int, free_bytes: int) -> int:
    """Return the number of compiling processes; the cores are divided by the GPUs, since each may have a sweep."""
    return max(1, min(cores // max(1, gpus) - _SPARED_CORES, free_bytes // _PROCESS_BYTES))


def _call(level: MeasuredLevel, name: str, inputs: Any, modes: set[str]) -> None:
    """Make each call of an implementation's checks and timings in these modes once."""
    attention = level.implementations()[name].attention
    for each in level.passes(inputs.case):
        if modes & set(each.modes):
            trial = level.trial(attention, inputs, each.mode)
            trial.prepare()
            trial.run()


def _serve(channel: Channel, pool: ProcessPoolExecutor) -> None:
    """Answer one message: find the kernels, compile them in the pool, and report progress."""
    import torch

    from runner.measure import triton_hooks

    message = channel.receive()
    torch.cuda.set_device(message["device"])
    claims = Claims(message["claims"])
    futures: list[Future[float]] = []

    def found(kernel: Kernel) -> None:
        if claims.take(kernel):
            futures.append(pool.submit(triton_hooks.compile_kernel, kernel))

    with claims.at_work():
        with triton_hooks.collect(found):
            rehearse([cell_from_json(record) for record in message["cells"]], message["device"], claims.take)
        for done, _ in enumerate(as_completed(futures)):
            channel.send({"event": "compiled", "done": done, "found": len(futures)})
    claims.wait_for_others()
    channel.send({"event": "rehearsed", **_outcome(futures)})


def _outcome(futures: Sequence[Future[float]]) -> dict[str, Any]:
    faults = [fault for future in futures if (fault := future.exception())]
    seconds = [future.result() for future in futures if not future.exception()]
    first = f"{type(faults[0]).__name__}: {faults[0]}"[:300] if faults else None
    return {"kernels": len(seconds), "seconds": sum(seconds), "failed": len(faults), "fault": first}


def _free_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    return _PROCESS_BYTES


def _main(channel: Channel, parent: int) -> None:
    die_with(parent)
    os.nice(_NICENESS)
    from runner.levels import with_own_implementations
    from runner.measure import triton_hooks

    for level in with_own_implementations().values():
        level.implementations()
    triton_hooks.prepare()
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    count = processes(len(os.sched_getaffinity(0)), gpus, _free_bytes())
    # The pool is forked before CUDA is initialized here too, so that its processes share all imports and use no GPU.
    pool = ProcessPoolExecutor(count, get_context("fork"), initializer=die_with, initargs=(os.getpid(),))
    pool.submit(int).result()
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(channel, pool)
