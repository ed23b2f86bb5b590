"""The process that touches torch and the device: `python -m runner.worker`, started and fed by the supervisor.

It answers over its own pair of pipes, never over stdout, and announces each step before it starts it, so that the
supervisor knows which cell a crash or a hang belongs to. It dies with the supervisor.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from results.records import Measurement, measurement_to_json
from runner import sweeps
from runner.cells import Cell, cell_from_json, cell_to_json
from runner.ipc import Channel, die_with
from runner.protocol import protocol_of

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
        self._helper: Any = None

    def serve(self) -> None:
        """Answer until the other end closes the conversation or is gone."""
        answers = {"open": self._open, "compile": self._compile, "start": self._start, "case": self._case}
        while True:
            try:
                message = self._channel.receive()
            except EOFError:
                return
            if message["do"] == "close":
                return
            answers[message["do"]](message)

    def _open(self, message: dict[str, Any]) -> None:
        """Find the device and plan the sweep; the device is not used yet, another sweep may hold it."""
        import torch

        from runner.machine import devices

        set_torch()
        if message.get("ahead"):
            self._fork_helper()
        try:
            self._device = devices.resolve(message["device"])
        except devices.UnknownDevice as error:
            self._channel.send({"event": "refused", "message": str(error)})
            return
        set_interpreter(self._device.type)
        if self._device.type != "cuda":
            self._dismiss_helper()
        else:  # before anything is asked of "the" GPU: another may be another sweep's
            torch.cuda.set_device(self._device.id)
        from runner import plan

        self._message = message
        try:
            names, wanted = message["implementations"], tuple(message.get("capabilities", ()))
            sweep = plan.timed_on(plan.chosen(sweeps.from_json(message["sweep"]), names, wanted), self._device.type)
        except plan.UnknownImplementation as error:
            self._channel.send({"event": "refused", "message": str(error)})
            return
        self._sweep = sweeps.to_json(sweep)
        if message["plan"]:
            self._cells = plan.plan(sweep, self._device, protocol_of(message["protocol"]), message["seed"])
        self._channel.send({"event": "opened", **self._plan_facts(sweep)})

    def _plan_facts(self, sweep: sweeps.Sweep) -> dict[str, Any]:
        """Return what the supervisor is to know of an opened sweep, before anything runs."""
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

    def _fork_helper(self) -> None:
        """Fork the helper while this process has torch and CUDA is not set up yet."""
        from runner.measure.precompile_child import Helper

        set_interpreter("cuda")
        self._helper = Helper(self._channel)

    def _compile(self, message: dict[str, Any]) -> None:
        """Let the helper compile, and load meanwhile what the first case would wait for otherwise."""
        self._helper.begin(self._device.id, message["cells"], message.get("claims"))
        answer = {"event": "rehearsed", "kernels": None}
        for said in self._helper.messages(meanwhile=self._loading()):
            if said["event"] == "rehearsed":
                answer = said
                break
            self._channel.send(said)
        self._dismiss_helper()
        self._channel.send(answer)

    def _loading(self) -> Iterator[None]:
        """Load what first calls would wait for otherwise, step by step: modules, then every library used once."""
        import torch.fx.experimental.symbolic_shapes  # noqa: F401 - the first torch.autograd.grad brings it, and sympy

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
        """Measure the device's peaks; from here on it is ours."""
        import torch

        from runner.machine import peaks
        from runner.machine.telemetry import Telemetry
        from runner.measure import stopwatch
        from runner.measure.case import Bench
        from runner.measure.energy import EnergyMeter, mark_on_gpu

        self._dismiss_helper()
        telemetry = Telemetry(self._device.uuid, companions=message.get("companions", 0))
        measured, empty_ms = peaks.Peaks(), None
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
        self._channel.send({"event": "started", **asdict(measured), "empty_launch_ms": empty_ms})

    def _case(self, message: dict[str, Any]) -> None:
        from runner.measure.case import ContextBroken
        from runner.measure.passes import run_case

        cells = [cell_from_json(record) for record in message["cells"]]
        try:
            run_case(self._bench, cells[0].case, cells)
        except ContextBroken as error:
            print(f"The CUDA context is broken, a new worker goes on: {error}", file=sys.stderr)
            sys.exit(EXIT_CONTEXT_BROKEN)
        self._channel.send({"event": "case_done", "costs": self._bench.costs.take()})

    def _emit(self, measurement: Measurement) -> None:
        self._channel.send({"event": "measurement", "record": measurement_to_json(measurement)})

    def _wait_for_turn(self, at: tuple[int, float]) -> None:
        """Say where in the rounds this worker is, and wait until it may go on: another one has the device."""
        self._channel.send({"event": "turn", "at": list(at)})
        with self._bench.telemetry.paused():
            message = self._channel.receive()
        if message["do"] != "go":
            raise RuntimeError(f"A worker that waits for its turn was told to {message['do']}.")

    def _begin(self, cell: Cell | None, step: str) -> None:
        where = None if cell is None else [cell.implementation, cell.mode]
        self._channel.send({"event": "begin", "cell": where, "step": step})


def set_torch() -> None:
    """Set PyTorch's switches as a measurement needs them."""
    import torch
    import torch._functorch.config

    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means IEEE
    torch.backends.cudnn.allow_tf32 = False
    torch._functorch.config.donated_buffer = False  # a timed backward keeps its graph, which compiled ones refuse


def set_interpreter(device_type: str) -> None:
    """Turn Triton's interpreter on for a CPU, and off for a GPU; triton reads this when kernels are imported, so call
    it before."""
    os.environ.pop("TRITON_INTERPRET", None)
    if device_type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def main() -> None:
    """Serve one supervisor: the entry point of `python -m runner.worker`."""
    parser = argparse.ArgumentParser(prog="python -m runner.worker", description="Started by the supervisor only.")
    parser.add_argument("--read-fd", type=int, required=True)
    parser.add_argument("--write-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with(arguments.parent)
    # Of PyTorch, when a backward's first work in its thread is a matrix product: it sets the context up and goes on.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    Worker(Channel(arguments.read_fd, arguments.write_fd)).serve()
    sys.stdout.flush()
    os._exit(0)  # everything is said; tearing the libraries down takes seconds and prints what they leak


if __name__ == "__main__":
    main()
