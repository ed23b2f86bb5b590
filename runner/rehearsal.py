"""Compiles what a sweep will launch, in parallel and before anything is measured: `python -m runner.rehearsal`.

Every call that the sweep will make of our kernels is made once with its launches taken out: what it asks Triton for is
what it will need, argument for argument, and no kernel runs. The compiling is done by processes that never touch the
GPU; they leave the kernels in Triton's cache on disk, where the worker's first call finds them. Started, fed and ended
by runner.ahead; whatever goes wrong here costs time and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cells import Cell, cell_from_json
from runner.wire import Channel
from runner.worker import die_with, set_interpreter

if TYPE_CHECKING:
    from runner.compiling import Kernel

_NICENESS = 10  # another sweep may be timing on another GPU
_SPARED_CORES = 2  # for this process and the worker
_PROCESS_BYTES = 1 << 30  # about what a process that compiles needs
# What a call may raise here: it does not fit, is not supported, or does with a kernel what a stand-in cannot answer.
_FAULTS = (RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def rehearse(cells: Iterable[Cell], device: str) -> None:
    """Make the calls of all cells once; of a call that fails, the rest is left out."""
    from kernels import registry
    from runner.subjects import Subject, empty_inputs

    for case, of_case in groupby(cells, key=lambda cell: cell.case):
        wanted: dict[str, set[str]] = {}
        for cell in of_case:
            wanted.setdefault(cell.implementation, set()).add(cell.mode)
        with contextlib.suppress(*_FAULTS):
            inputs = empty_inputs(case, device)
            for name, modes in wanted.items():
                with contextlib.suppress(*_FAULTS):
                    _call(Subject(registry.get(name).attention, inputs, case), modes)


def processes(cores: int, gpus: int, free_bytes: int) -> int:
    """How many compile at a time: the cores are shared out among the GPUs, as each may have a sweep of its own."""
    return max(1, min(cores // max(1, gpus) - _SPARED_CORES, free_bytes // _PROCESS_BYTES))


def _call(subject: Any, modes: set[str]) -> None:
    if "fwd" in modes:
        subject.call("fwd")()
    if modes - {"fwd"}:
        subject.backward(subject.forward())


def _serve(channel: Channel, pool: ProcessPoolExecutor) -> None:
    """Answer one message: find the kernels, let them be compiled, tell how it goes."""
    import torch

    from runner import compiling

    message = channel.receive()
    torch.cuda.set_device(message["device"])
    futures: list[Future[float]] = []

    def found(kernel: Kernel) -> None:
        futures.append(pool.submit(compiling.compile_kernel, kernel))

    with compiling.collect(found):
        rehearse([cell_from_json(record) for record in message["cells"]], message["device"])
    for done, _ in enumerate(as_completed(futures)):
        channel.send({"event": "compiled", "done": done, "found": len(futures)})
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


def main() -> None:
    """Entry point of `python -m runner.rehearsal`."""
    parser = argparse.ArgumentParser(prog="python -m runner.rehearsal", description="Started by the supervisor only.")
    for name in ("--read-fd", "--write-fd", "--parent"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    die_with(arguments.parent)
    os.nice(_NICENESS)
    set_interpreter("cuda")
    from kernels import registry
    from runner import compiling

    registry.implementations()
    compiling.prepare()
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    count = processes(len(os.sched_getaffinity(0)), gpus, _free_bytes())
    # Forked before CUDA is: they have everything imported, and none of them sees the GPU.
    pool = ProcessPoolExecutor(count, get_context("fork"), initializer=die_with, initargs=(os.getpid(),))
    pool.submit(int).result()
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(Channel(arguments.read_fd, arguments.write_fd), pool)
    os._exit(0)  # whoever started this ends the processes of the group


if __name__ == "__main__":
    main()
