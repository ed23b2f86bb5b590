"""The supervisor on one card of a cluster, which measures cases assigned by the driver and returns rows. No Ray."""

import contextlib
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from results.files.journal import JournalError, RunFolder, home
from results.paths import REPOSITORY
from results.records import Case, measurement_to_json, run_to_json
from runner.cells import Cell, cell_to_json
from runner.locks import DeviceBusy
from runner.progress import Progress
from runner.supervise.job import Cancelled, Job, Refused, SweepFailed
from runner.supervise.supervisor import supervise

_TELL_S = 0.5  # interval of reports on a case
_PLACE = f"attnbench-card-{os.uname().nodename}-"  # prefix of a card's folder, followed by the process id
_CLAIMS = "attnbench-claims-"  # prefix of the folder that the cards of a host share
_CLAIMS_AGE_S = 3600.0  # claims are only needed while kernels are compiled, at the start


@dataclass(frozen=True)
class Errand:
    """The driver's instructions for a card."""

    job: Job  # its device is cpu, or None for the GPU assigned by the cluster
    claims: str  # suffix of the temporary folder in which the cards of a host divide the compiling
    home: str  # home of the driver, where the devices of its host are locked
    worker_command: tuple[str, ...]
    python_path: str  # PYTHONPATH of the driver, with its checkout first


class CardSupervisor:
    """Measures cases on the card of this process, one at a time, as the driver assigns them.

    The driver's calls are answered in threads of their own, so that `look` and `stop` do not wait for a case.
    """

    def __init__(self, errand: Errand, slot: str) -> None:
        self._errand, self._slot = errand, slot
        if errand.python_path.split(os.pathsep)[0] == str(REPOSITORY):  # it runs the driver's own files
            os.environ["PYTHONPATH"] = errand.python_path
        clear_leftovers(Path(tempfile.gettempdir()))
        self._place = Path(tempfile.mkdtemp(prefix=f"{_PLACE}{os.getpid()}-"))
        self._claims = Path(tempfile.gettempdir(), f"{_CLAIMS}{errand.claims}")
        self._claims.mkdir(exist_ok=True)
        self._folder = RunFolder(self._place / "runs" / errand.job.run_id)
        self._offset = self._logged = 0  # numbers of bytes of the journal and of the log that were read
        self._rows: defaultdict[Case, list[dict[str, Any]]] = defaultdict(list)  # rows not sent yet, by case
        self._cases: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # numbers of assigned cases; None: the end
        self._events: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._stop, self._over, self._reading = threading.Event(), threading.Event(), threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def opened(self) -> dict[str, Any]:
        """Return the plan of the sweep on this card once it is made, or how the card ended."""
        found = self._events.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def measure(self, index: int | None) -> dict[str, Any]:
        """Return the rows of the case with this number once it is complete; None ends the card. Or how it ended."""
        self._cases.put(index)
        return self.opened()

    def look(self) -> dict[str, Any]:
        """Return after a moment the current step and the new lines of the log."""
        self._over.wait(_TELL_S)
        state = self._folder.read_state()
        return {"event": "at", "current": state and state.current, "lines": self._new_lines()}

    def stop(self) -> None:
        """Stop measuring, also within a case."""
        self._stop.set()

    def _run(self) -> None:
        """Measure until the driver ends it. Failures are reported to the driver."""
        ended: dict[str, Any] | BaseException
        try:
            how, message = self._supervise()
            ended = {"event": "ended", "how": how, "message": message, "costs": self._folder.costs()}
            ended["lines"] = self._new_lines()
        except BaseException as error:  # raised again where the driver waits
            ended = error
        self._over.set()
        with self._reading:
            for place in (self._place, self._claims):
                shutil.rmtree(place, ignore_errors=True)
        self._events.put(ended)

    def _supervise(self) -> tuple[str, str]:
        errand = self._errand
        job = replace(errand.job, claims=str(self._claims), order=self._order)
        shared = Path(errand.home) if Path(errand.home).is_dir() else home()
        locks = self._place if errand.job.device == "cpu" else shared
        try:
            quiet = Progress(StringIO())
            supervise(
                job,
                self._place,
                progress=quiet,
                stop=self._stop.is_set,
                worker_command=errand.worker_command,
                locks=locks,
            )
        except (Refused, DeviceBusy, SweepFailed, JournalError) as error:
            return type(error).__name__, str(error)
        except Cancelled:
            return "Cancelled", ""
        return "done", ""

    def _order(self, cases: list[list[Cell]]) -> Iterator[list[Cell]]:
        """Yield the cases that the driver assigns, and report each case as complete before the next."""
        run = self._folder.run()
        cells = [cell_to_json(cell) for of_case in cases for cell in of_case]
        card = f"cpu-{self._slot}" if self._errand.job.device == "cpu" else run.gpu_uuid or self._slot
        host = socket.gethostname()
        self._events.put({"event": "opened", "card": card, "host": host, "run": run_to_json(run), "cells": cells})
        while (index := self._cases.get()) is not None:
            yield cases[index]
            done = {"rows": self._rows_of(cases[index][0].case), "run": run_to_json(self._folder.run())}
            self._events.put({"event": "done", "costs": self._folder.costs(), **done})

    def _rows_of(self, case: Case) -> list[dict[str, Any]]:
        """Return the journal rows of a case; those of cases that are not assigned to this card are never sent."""
        found, self._offset, _ = self._folder.read(self._offset)
        for row in found:
            self._rows[row.case].append(measurement_to_json(row))
        return self._rows.pop(case, [])

    def _new_lines(self) -> list[str]:
        """Return the new complete lines of the workers' output."""
        with self._reading:
            if not self._folder.log_path.exists():
                return []
            with open(self._folder.log_path, "rb") as file:
                file.seek(self._logged)
                lines = file.read().rpartition(b"\n")[0]
            self._logged += len(lines) + 1 if lines else 0
        return lines.decode(errors="replace").splitlines()


def clear_leftovers(folder: Path) -> None:
    """Remove the folders of killed cards of this host from the temporary folder."""
    for path in folder.glob(f"{_PLACE}*"):
        if not Path("/proc", path.name.removeprefix(_PLACE).partition("-")[0]).exists():
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f"{_CLAIMS}*"):
        with contextlib.suppress(OSError):  # another card may remove it at the same time
            if time.time() - path.stat().st_mtime > _CLAIMS_AGE_S:
                shutil.rmtree(path, ignore_errors=True)


def slot_of_process(node: str) -> str:
    """Return a name for this process's slot in the cluster, made of its node and CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(",", "+")
    return f"{node[:8]}-{visible}" if visible else node[:8]
