"""A worker without torch that speaks the real protocol and answers at once, so that many kills fit into a test.

Every number follows from its measurement's id, so that a test knows what must be in the journal. Settings (JSON in
ATTNBENCH_TEST_WORKER): `delay_s` before each number; `stuck_at` [implementation, mode, seqlen] never answers there;
`dies_at`, likewise; `dies_on_start`; `costs` of each case; `peaks` and `gbs` as measured; `code`, its kernel hash;
`pids`, a file to which each worker adds its process id; `compiles`, how its compiling ahead ends: "well", "badly" or
with its death. Asked for turns it takes ROUNDS of them at each cell, and adds each to the file `turns`: its process id,
round, implementation and mode.
"""

import json
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from results.records import Measurement, Status, measurement_to_json
from runner import sweeps
from runner.cells import cell_to_json, ordered_cells
from runner.ipc import Channel, die_with

SETTINGS_VARIABLE = "ATTNBENCH_TEST_WORKER"
SETTINGS = json.loads(os.environ.get(SETTINGS_VARIABLE, "{}"))
ROUNDS = 2


def number_of(measurement_id: str) -> float:
    """The latency that a row of that id has."""
    return int(measurement_id[:4], 16) / 1000 + 0.001


def rows(run_id, cell, timings):
    for timing in timings:
        plain = Measurement(
            run_id, cell.case, cell.implementation, "latency_ms", Status.ERROR, mode=cell.mode, timing=timing
        )
        record = measurement_to_json(plain)
        yield record | {"status": "ok", "value": number_of(record["measurement_id"]), "statistic": "median"}


def main() -> None:
    arguments = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True))
    die_with(arguments["--parent"])
    channel = Channel(Connection(arguments["--fd"]))
    if "pids" in SETTINGS:
        with Path(SETTINGS["pids"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    print("the fast worker is here")
    if SETTINGS.get("dies_on_start"):
        sys.exit(5)
    timings, run_id, turns, plan = (), "", False, []
    while True:
        message = channel.receive()
        if message["do"] == "open":
            timings, turns = message["sweep"]["timings"], message["turns"]
            plan = planned(message)
            channel.send(opened(message, plan))
        elif message["do"] == "compile":
            channel.send({"event": "compiled", "done": 1, "found": len(message["cells"])})
            if SETTINGS["compiles"] == "dies":
                sys.exit(9)
            kernels = 7 if SETTINGS["compiles"] == "well" else None
            channel.send({"event": "rehearsed", "kernels": kernels, "seconds": 2.5, "failed": 0, "fault": None})
        elif message["do"] == "start":
            run_id = message["run_id"]
            channel.send({"event": "started", "tflops": SETTINGS.get("peaks", {}), "gbs": SETTINGS.get("gbs")})
        elif message["do"] == "case":
            if turns:
                take_turns(channel, [plan[number] for number in message["cells"]])
            for number in message["cells"]:
                measure(channel, run_id, number, plan[number], timings)
            channel.send({"event": "case_done", "costs": SETTINGS.get("costs", {})})
        else:
            return


def planned(message):
    sweep = sweeps.from_json(message["sweep"])
    return ordered_cells(sweep.cases(), names_of(message), sweep.modes, message["seed"])


def names_of(message):
    return tuple(message["implementations"] or message["sweep"]["implementations"])


def opened(message, cells):
    sweep, names = sweeps.from_json(message["sweep"]), names_of(message)
    facts = {"gpu_name": "Test GPU", "gpu_uuid": "test", "device_type": "cuda"}
    return {
        "event": "opened",
        "device": {"id": "cuda:0", "lock": "gpu-test", "type": "cuda"},
        "sweep": sweeps.to_json(sweep) | {"implementations": names},
        "implementations": {name: {"level": sweep.level, "family": "own"} for name in names},
        "compiled_ahead": [name for name in names if name.startswith("triton")],
        "environment": facts | {"kernel_hash": SETTINGS.get("code", "kernels")},
        "cells": [cell_to_json(cell) for cell in cells],
        "ahead": "compiles" in SETTINGS,
    }


def take_turns(channel, cells):
    ranks = {f"{cell.implementation} {cell.mode}": rank for rank, cell in enumerate(cells)}
    for number in range(ROUNDS):
        for words, rank in ranks.items():
            channel.send({"event": "turn", "at": [number, rank]})
            assert channel.receive() == {"do": "go"}
            if "turns" in SETTINGS:
                with Path(SETTINGS["turns"]).open("a") as file:
                    file.write(f"{os.getpid()} {number} {words}\n")
    channel.send({"event": "turn", "at": [ROUNDS, 0]})
    assert channel.receive() == {"do": "go"}


def measure(channel, run_id, number, cell, timings):
    where = [cell.implementation, cell.mode, cell.case.seqlen_q]
    channel.send({"event": "begin", "cell": number, "step": "timing"})
    if where == SETTINGS.get("stuck_at"):
        threading.Event().wait()
    if where == SETTINGS.get("dies_at"):
        os.kill(os.getpid(), signal.SIGSEGV)
    for record in rows(run_id, cell, timings):
        threading.Event().wait(SETTINGS.get("delay_s", 0.0))
        channel.send({"event": "measurement", "record": record})


if __name__ == "__main__":
    main()
