"""The process that uses torch and the device: `python -m runner.worker`, started and controlled by the supervisor.

It answers over a separate socket, not over stdout. It announces each step before the step starts, so that the
supervisor can charge a crash or a hang to a cell. Cells cross the pipe once, in the answer to "open"; afterwards both
sides refer to them by their numbers in the plan. The process ends with its supervisor.
"""

import argparse
import gc
import os
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from results.compare.between_rounds import RoundMedians
from results.records import Measurement, measurement_to_json
from runner import sweeps
from runner.cells import Cell, cell_to_json
from runner.ipc import Channel, die_with
from runner.protocol import protocol_of
from runner.supervise.job import Refused

EXIT_CONTEXT_BROKEN = 70


class Worker:
    """One conversation: open, start, cases, close."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._message: dict[str, Any] = {}
        self._sweep: dict[str, Any] = {}
        self._device: Any = None
        self._bench: Any = None
        self._cells: list[Cell] = []
        self._numbers: dict[Cell, int] = {}  # cell numbers in the plan
        self._helper: Any = None

    def serve(self) -> None:
        """Answer until the other end closes the conversation or ends."""
        answers = {"open": self._open, "compile": self._compile, "start": self._start, "case": self._case}
        while True:
            try:
                message = self._channel.receive()
            except EOFError:
                return
            if message["do"] == "close":
                return
            try:
                answers[message["do"]](message)
            except Refused as error:
                self._channel.send({"event": "refused", "message": str(error)})

    def _open(self, message: dict[str, Any]) -> None:
        """Find the device and plan the sweep, without using the device, which another sweep may hold."""
        import torch

        from runner.machine import devices

        gc.freeze()  # later collections skip what torch made, which takes 0.1 s each
        set_torch()
        if message.get("ahead"):  # fork after importing torch and before CUDA is initialized
            from runner.measure.precompile_child import Helper

            set_interpreter("cuda")
            self._helper = Helper(self._channel)
        self._device = devices.resolve(message["device"])
        set_interpreter(self._device.type)
        if self._device.type != "cuda":
            self._dismiss_helper()
        else:  # calls that default to the current GPU must not reach a GPU of another sweep
            torch.cuda.set_device(self._device.id)
        from runner import plan

        self._message = message
        names, wanted = message["implementations"], tuple(message.get("capabilities", ()))
        sweep = plan.chosen(sweeps.from_json(message["sweep"]), names, wanted, self._device.id)
        sweep = plan.timed_on(sweep, self._device.type)
        self._sweep = sweeps.to_json(sweep)
        self._cells = plan.plan(sweep, self._device, protocol_of(message["protocol"]), message["seed"])
        self._numbers = {cell: number for number, cell in enumerate(self._cells)}
        self._channel.send({"event": "opened", **self._plan_facts(sweep)})

    def _plan_facts(self, sweep: sweeps.Sweep) -> dict[str, Any]:
        """Return what the supervisor needs to know about an opened sweep before anything runs."""
        from runner import plan
        from runner.machine import environment

        return {
            "device": {"id": self._device.id, "lock": self._device.lock, "type": self._device.type},
            "sweep": self._sweep,
            "implementations": plan.facts(sweep),
            "compiled_ahead": plan.compiled_ahead(sweep),
            "environment": environment.describe(self._device),
            "cells": [cell_to_json(cell) for cell in self._cells],
            "ahead": self._helper is not None,
        }

    def _compile(self, message: dict[str, Any]) -> None:
        """Let the helper compile, and meanwhile load the libraries that the first case would wait for."""
        cells = [cell_to_json(self._cells[number]) for number in message["cells"]]
        self._helper.begin(self._device.id, cells, message.get("claims"))
        answer = {"event": "rehearsed", "kernels": None}
        for said in self._helper.messages(meanwhile=self._loading()):
            if said["event"] == "rehearsed":
                answer = said
                break
            self._channel.send(said)
        self._dismiss_helper()
        self._channel.send(answer)

    def _loading(self) -> Iterator[None]:
        """Load the modules that first calls would wait for, and use every library once, step by step."""
        import torch.fx.experimental.symbolic_shapes  # noqa: F401 - imported by the first torch.autograd.grad

        from runner.machine import peaks, telemetry  # noqa: F401
        from runner.measure.precompile_child import rehearse, small_cells

        yield
        for cell in small_cells(self._cells):
            rehearse([cell], self._device.id)
            yield

    def _dismiss_helper(self) -> None:
        if self._helper:
            self._helper.end()
        self._helper = None

    def _start(self, message: dict[str, Any]) -> None:
        """Set the device up for measuring and measure its peaks, with the device locked by the supervisor."""
        import torch

        from runner.machine import peaks
        from runner.machine.telemetry import Telemetry
        from runner.measure import stopwatch
        from runner.measure.case import Bench
        from runner.measure.energy import EnergyMeter, mark_on_gpu

        self._dismiss_helper()
        telemetry = Telemetry(self._device.uuid, companions=message.get("companions", 0))
        measured: dict[str, Any] = {}
        empty_ms = None
        stopwatches: dict[str, stopwatch.Stopwatch] = {"eager": stopwatch.EagerStopwatch(watched=True)}
        if self._device.type == "cuda":
            if message.get("peaks"):
                measured = peaks.measure(self._device.id, lambda: telemetry.settle(self._device.id))
            kernel = stopwatch.KernelStopwatch(self._device.id)
            stopwatches = {"kernel": kernel, "eager": stopwatch.EagerStopwatch(torch.cuda.synchronize)}
            telemetry.settle(self._device.id)
            empty_ms = kernel.empty_launch_ms()
        sweep, protocol = self._sweep, protocol_of(self._message["protocol"])
        wanted = telemetry.gpu and (sweep["energy"] or protocol.trace_s > 0)
        self._bench = Bench(
            run_id=message["run_id"],
            files=tuple(message.get("files", ())),
            run_folder=Path(message.get("folder", "")),
            device=self._device.id,
            protocol=protocol,
            timings=tuple(sweep["timings"]),
            seed=self._message["seed"],
            depths=tuple(sweep.get("depths", ())),
            emit=self._emit,
            begin=self._begin,
            telemetry=telemetry,
            stopwatches=stopwatches,
            energy=EnergyMeter(telemetry.gpu.energy_j, mark_on_gpu) if wanted else None,
            turn=self._wait_for_turn if self._message.get("turns") else None,
        )
        self._channel.send({"event": "started", **measured, "empty_launch_ms": empty_ms})

    def _case(self, message: dict[str, Any]) -> None:
        from runner.measure.case import ContextBroken
        from runner.measure.passes import run_case

        cells = [self._cells[number] for number in message["cells"]]
        try:
            run_case(self._bench, cells[0].case, cells)
        except ContextBroken as error:
            print(f"The CUDA context is broken, a new worker goes on: {error}", file=sys.stderr)
            sys.exit(EXIT_CONTEXT_BROKEN)
        self._channel.send({"event": "case_done", "costs": self._bench.costs.take()})

    def _emit(self, measurement: Measurement) -> None:
        self._channel.send({"event": "measurement", "record": measurement_to_json(measurement)})

    def _wait_for_turn(
        self, at: tuple[int, float], so_far: Mapping[tuple[Cell, str], RoundMedians]
    ) -> Collection[Cell]:
        """Report this worker's position, wait for its turn, and return the cells that take more rounds."""
        medians = [(self._numbers[cell], timing, rounds.logs) for (cell, timing), rounds in so_far.items()]
        self._channel.send({"event": "turn", "at": list(at), "medians": medians})
        with self._bench.telemetry.paused():
            message = self._channel.receive()
        if message["do"] != "go":
            raise RuntimeError(f"A worker that waits for its turn was told to {message['do']}.")
        return [self._cells[number] for number in message.get("more", ())]

    def _begin(self, cell: Cell | None, step: str) -> None:
        number = None if cell is None else self._numbers[cell]
        self._channel.send({"event": "begin", "cell": number, "step": step})


def set_torch() -> None:
    """Set PyTorch's switches for measuring."""
    import torch
    import torch._functorch.config

    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means IEEE
    torch.backends.cudnn.allow_tf32 = False
    torch._functorch.config.donated_buffer = False  # a timed backward retains its graph, which donation forbids


def set_interpreter(device_type: str) -> None:
    """Turn Triton's interpreter on for a CPU and off for a GPU. Call it before kernels are imported."""
    os.environ.pop("TRITON_INTERPRET", None)
    if device_type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def main() -> None:
    """Serve one supervisor: the entry point of `python -m runner.worker`."""
    parser = argparse.ArgumentParser(prog="python -m runner.worker", description="Started by the supervisor only.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with(arguments.parent)
    # PyTorch warns if the first operation in a backward's thread is a matrix product, and then creates the context.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    Worker(Channel(Connection(arguments.fd))).serve()
    sys.stdout.flush()
    os._exit(0)  # unloading the libraries takes seconds and prints warnings about leaks


if __name__ == "__main__":
    main()
