"""Runs a sweep through workers and records every number. No torch, so that a kernel's fault cannot affect it.

A worker announces each step with the cell that is charged for a failure. If the worker crashes, hangs or is killed,
that cell gets its status here, a new worker starts, and the sweep goes on with the cells that have no status.
"""

import contextlib
import importlib.util
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from results import levels
from results.files.journal import JournalError, RunFolder, new_run_id
from results.records import Measurement, Run, Status, measurement_from_json
from runner.cells import Cell, cell_from_json, utc_now, without_number
from runner.locks import device_lock
from runner.overhead import COMPILING, STARTS, TOTAL
from runner.progress import Progress, StateWriter
from runner.protocol import protocol_of
from runner.supervise import other_version
from runner.supervise.job import Cancelled, Job, Refused, SweepFailed
from runner.supervise.pair import CUT_OFF, PairedWorkers, cut_in_half
from runner.supervise.remaining import Expected, Remaining
from runner.supervise.worker_handle import COMMAND, GRACE_S, OPEN_LIMIT_S, Waiting, WorkerHandle

_STEP_LIMIT_S = 120.0  # includes compiling; the cell's estimate is added
_STEP_LIMIT_ESTIMATES = 20.0
_LOSSES_OF_CASE = 3  # lost workers in one case without a new status before the case is given up
_LOSSES_OF_ONE = 6  # lost workers due to one implementation before its other cells are skipped
SILENCE_S = 60.0  # time limit for compiling one kernel, and for finding all of them
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # device files of the driver on Linux and in WSL
MOST_TRACES = 6  # most cells of a sustained run
_LOCK_WAIT_RESUMED_S = 5.0  # the worker of a killed supervisor may need a moment to end
# Fields that a resumed run must have in common with its first part, so that its numbers are comparable.
_SAME = ("gpu_uuid", "gpu_name", "torch", "triton", "kernel_hash", "protocol", "against")


class Sweeping:
    """A running sweep: sends cases to the worker, records its answers, and gives lost cells a status."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        cells: list[Cell],
        timings: tuple[str, ...],
        handle: WorkerHandle | PairedWorkers,
        progress: Progress,
        begun: float,  # time.monotonic() when the first worker was started
    ) -> None:
        self._job, self._folder, self._cells, self._timings = job, folder, cells, timings
        self._numbers = {cell: number for number, cell in enumerate(cells)}
        self._handle, self._progress = handle, progress
        self._ids: set[str] = set()
        self._left: dict[Cell, set[str]] = {}  # ids of the rows that each unfinished cell still needs
        self._owner: dict[str, Cell] = {}  # the cell that needs the row of an id
        self._remaining = Remaining(cells, protocol_of(job.protocol), len(timings))
        self._expected, self._case_begun = Expected(), time.monotonic()
        self._losses: Counter[str] = Counter()
        self._failed_starts, self._why = 0, ""
        self._begun, started, self._state = begun, time.monotonic(), StateWriter()
        before = folder.costs() if job.resume else {}
        self._costs = cast(Any, Counter(before))  # seconds by kind; the type of Counter allows whole numbers only
        self._costs_before_s = self._costs.pop(TOTAL, 0.0)
        self._costs[STARTS] += started - begun
        self._ready = False  # the worker has warmed up
        self._at: Cell | None = None  # the cell announced, its step, and how long that may take
        self._step, self._deadline_s = "", OPEN_LIMIT_S
        self._current: str | None = None

    def run(self, *, compiled_ahead: Collection[str]) -> None:
        """Measure all cases, after compiling the kernels of the implementations `compiled_ahead`.

        Raises Cancelled, SweepFailed or JournalError after writing the state.
        """
        try:
            self._recall()
            if self._job.resume:
                self._folder.clear_cancel()
            waiting = self._handle.waiting
            signalled = waiting.stop
            waiting.stop = lambda: signalled() or self._folder.cancel_requested()
            waiting.call = self._show  # so that a hanging step is shown
            self._write_state("running")
            for cell in self._cells:
                if cell.reason:
                    self._give_status([cell], Status(cell.reason_status), cell.reason)
            self._give_status(cut_in_half(self._cells, self._left), Status.SKIPPED, CUT_OFF)
            self._compile_ahead(compiled_ahead)
            for cells in self._job.order([list(cells) for _, cells in groupby(self._cells, key=lambda c: c.case)]):
                self._finish_case(cells)
            self._current = None
            self._write_state("finished")
        except Cancelled:
            self._end("cancelled", "Cancelled. It can be resumed.")
            raise Cancelled(self._folder.run_id) from None
        except (SweepFailed, JournalError) as error:
            self._end("failed", str(error))
            raise
        finally:
            self._progress.finish()

    def _recall(self) -> None:
        self._ids = self._folder.measurement_ids()
        for cell in self._cells:
            rows = without_number(self._folder.run_id, cell, self._timings, Status.SKIPPED, "")
            lacking = {row.measurement_id for row in rows} - self._ids
            if lacking:
                self._left[cell] = lacking
                self._owner |= dict.fromkeys(lacking, cell)
        self._expect([])

    def _compile_ahead(self, names: Collection[str]) -> None:
        """Let the worker compile the kernels of the named implementations before anything is measured."""
        begun = time.monotonic()
        ours = [n for n, c in enumerate(self._cells) if c in self._left and c.implementation in names]

        def tell(done: int, found: int) -> None:
            self._show(f"compiling ahead, {done} of {found} kernels")

        if ours:
            self._handle.log.note(f"{utc_now()} {compile_ahead(self._handle, ours, tell, self._job.claims)}")
        self._costs[COMPILING] += time.monotonic() - begun

    def _finish_case(self, cells: list[Cell]) -> None:
        losses = 0
        self._expect(cells)
        done, total = self._counts()
        self._handle.log.note(f"{utc_now()} {done}/{total} cells, next {levels.words(cells[0].case)}")
        while todo := self._without_hopeless([cell for cell in cells if cell in self._left]):
            before = len(self._left)
            self._work(todo)
            losses = losses + 1 if len(self._left) == before else 0
            if losses == _LOSSES_OF_CASE:
                self._give_status(todo, Status.ERROR, f"Given up after {losses} lost workers. {self._why}")

    def _without_hopeless(self, todo: list[Cell]) -> list[Cell]:
        hopeless = [cell for cell in todo if self._losses[cell.implementation] >= _LOSSES_OF_ONE]
        for cell in hopeless:
            note = f"{cell.implementation} took {_LOSSES_OF_ONE} workers down in this run; the rest of it is not tried."
            self._give_status([cell], Status.SKIPPED, note)
        return [cell for cell in todo if cell not in hopeless]

    def _work(self, todo: list[Cell]) -> None:
        """Let a worker measure these cells of a case; if the worker is lost, its current cell gets a status."""
        self._at, self._step, self._deadline_s = None, "start", OPEN_LIMIT_S
        try:
            self._ensure_worker()
            self._handle.send({"do": "case", "cells": [self._numbers[cell] for cell in todo]})
            self._deadline_s = self._limit(todo)
            self._listen(todo)
            unanswered = [cell for cell in todo if cell in self._left]
            self._give_status(unanswered, Status.ERROR, "The worker reported no result.")
            return
        except EOFError:
            status, self._why = Status.ERROR, f"{self._handle.describe_loss()} (in its {self._step})"
        except TimeoutError:
            status = Status.TIMEOUT
            self._why = f"No answer within {self._deadline_s:.0f} s in its {self._step}; the worker was killed."
            self._handle.kill()
        self._handle.log.note(f"{utc_now()} {self._at.words if self._at else 'No cell announced'}: {self._why}")
        if not self._ready:
            self._failed_starts += 1
            if self._failed_starts == _LOSSES_OF_CASE:
                raise SweepFailed(f"The worker failed to start {self._failed_starts} times. {self._why}")
        self._ready = False
        if self._at is not None and self._at in self._left:
            self._losses[self._at.implementation] += 1
            self._give_status([self._at], status, self._why)

    def _listen(self, todo: list[Cell]) -> None:
        begun = time.monotonic()
        while message := self._handle.receive(time.monotonic() + self._deadline_s):
            if message["event"] == "case_done":
                costs = message.get("costs", {})
                self._costs.update(costs)
                self._remaining.finished(todo, time.monotonic() - begun, costs.get(COMPILING, 0.0))
                return
            if message["event"] == "begin":
                self._at = None if message["cell"] is None else self._cells[message["cell"]]
                self._step, self._deadline_s = message["step"], self._limit([self._at] if self._at else todo)
                self._show(f"{(self._at or todo[0]).words} ({self._step})")
            else:
                self._record(measurement_from_json(message["record"]))

    def _ensure_worker(self) -> None:
        begun = time.monotonic()
        if not self._handle.present:
            self._handle.open()
        if not self._ready:
            run = self._folder.run()
            wanted = self._job.peaks and run.measured_tflops is None and bool(self._timings)
            files = {"files": list(self._job.files), "folder": str(self._folder.path)} if self._job.files else {}
            self._handle.send({"do": "start", "run_id": run.run_id, "peaks": wanted, **files})
            answer = self._handle.receive(time.monotonic() + OPEN_LIMIT_S)
            self._ready, self._failed_starts = True, 0
            if answer.get("tflops"):
                found = {"measured_tflops": answer["tflops"], "measured_gbs": answer.get("gbs")}
                self._folder.write_run(replace(run, empty_launch_ms=answer.get("empty_launch_ms"), **found))
        self._costs[STARTS] += time.monotonic() - begun

    def _limit(self, cells: list[Cell]) -> float:
        longest = max(cell.seconds for cell in cells)
        return self._job.step_limit_s or _STEP_LIMIT_S + _STEP_LIMIT_ESTIMATES * longest

    def _record(self, measurement: Measurement) -> None:
        identity = measurement.measurement_id
        if identity in self._ids:  # a resumed run or a second worker repeats known rows
            return
        self._folder.append(measurement)
        self._ids.add(identity)
        cell = self._owner.pop(identity, None)
        if cell is None:
            return
        self._remaining.measured(cell, measurement)
        self._left[cell].discard(identity)
        if not self._left[cell]:
            del self._left[cell]
            self._write_state("running")

    def _give_status(self, cells: list[Cell], status: Status, note: str) -> None:
        for cell in cells:
            if cell in self._left:
                for row in without_number(self._folder.run_id, cell, self._timings, status, note):
                    self._record(row)

    def _show(self, current: str | None = None) -> None:
        self._current = current or self._current
        if self._current:
            self._progress.show(*self._counts(), self._current, *self._eta())
        self._write_state("running")

    def _counts(self) -> tuple[int, int]:
        """Return the number of finished cells and of all cells, without those that the plan skips."""
        total = sum(not cell.reason for cell in self._cells)
        return total - sum(not cell.reason for cell in self._left), total

    def _expect(self, case: list[Cell]) -> None:
        """Estimate the case that begins and the cases after it."""
        left = [cell for cell in self._left if not cell.reason]
        of_case = [cell for cell in case if cell in self._left and not cell.reason]
        whole = self._remaining.seconds(left)
        rest = self._remaining.seconds([*set(left) - set(of_case)])
        self._expected = Expected(whole - rest, rest, bound=not self._remaining.knows(left))
        self._case_begun = time.monotonic()

    def _eta(self) -> tuple[float | None, bool]:
        """Return the estimated remaining seconds, and whether they are a lower bound."""
        return self._expected.left(time.monotonic() - self._case_begun)

    def _write_state(self, state: str, message: str | None = None) -> None:
        done, total = self._counts()
        eta_s, bound = self._eta()
        total_s = self._costs_before_s + time.monotonic() - self._begun
        costs = {kind: round(seconds, 3) for kind, seconds in (*self._costs.items(), (TOTAL, total_s))}
        known = {"current": self._current, "eta_s": eta_s, "eta_bound": bound, "costs": costs}
        self._state.write(self._folder, state, done=done, total=total, pid=os.getpid(), message=message, **known)

    def _end(self, state: str, message: str) -> None:
        # On a full disk the state cannot be written; the exit code and the message explain.
        with contextlib.suppress(JournalError):
            self._write_state(state, message)


def supervise(
    job: Job,
    home: Path,
    *,
    progress: Progress,
    stop: Callable[[], bool],
    worker_command: tuple[str, ...] = COMMAND,
    locks: Path | None = None,
    other_command: tuple[str, ...] | None = None,  # starts the other version's worker; None: worker_command
) -> RunFolder:
    """Measure every cell without a status and return the run's folder.

    The device is locked in the home `locks`, by default `home`. Raises Refused, DeviceBusy, Cancelled, SweepFailed or
    JournalError.
    """
    begun = time.monotonic()
    with contextlib.ExitStack() as left:
        handle = _workers(job, (worker_command, other_command or worker_command), stop, left)
        left.callback(handle.kill, grace_s=GRACE_S)
        opened = _open(handle, job)
        seconds, count = protocol_of(job.protocol).trace_s, sum(not cell["reason"] for cell in opened["cells"])
        if seconds and count > MOST_TRACES:
            raise Refused(
                f"{job.protocol} takes {seconds:.0f} s for each cell and these are {count}; at most {MOST_TRACES} are "
                "possible. Narrow them, such as --implementations triton_fa2 --set modes=fwd --set seqlen=4096."
            )
        run_id = job.resume or job.run_id or new_run_id(job.sweep.name)
        wait_s = _LOCK_WAIT_RESUMED_S if job.resume else 0.0
        with device_lock(locks or home, opened["device"]["lock"], run_id, wait_s=wait_s):
            try:
                folder, timings = _folder(job, home, run_id, opened), tuple(opened["sweep"]["timings"])
                with folder.lock():
                    handle.log.write_to(folder.log_path)
                    cells = [cell_from_json(record) for record in opened["cells"]]
                    sweeping = Sweeping(job, folder, cells, timings, handle, progress, begun)
                    sweeping.run(compiled_ahead=opened["compiled_ahead"] if opened.get("ahead") else ())
                    handle.close()
                return folder
            finally:
                handle.kill(grace_s=GRACE_S)  # before the device lock is released


def _workers(
    job: Job, commands: tuple[tuple[str, ...], tuple[str, ...]], stop: Callable[[], bool], left: contextlib.ExitStack
) -> WorkerHandle | PairedWorkers:
    """Return the worker or pair of workers; `left` removes the tree of another version. Raises Refused."""
    command, other = commands
    if job.against is None:
        return WorkerHandle(job, command, Waiting(stop))
    other = (job.against.python, *other[1:]) if job.against.python else other
    return PairedWorkers(job, (command, other), Waiting(stop), left.enter_context(other_version.laid_out(job.against)))


def _open(handle: WorkerHandle | PairedWorkers, job: Job) -> dict[str, Any]:
    try:
        return handle.open(ahead=can_compile_ahead(job.device))
    except EOFError:
        raise SweepFailed(f"The worker does not start. {handle.describe_loss()}") from None
    except TimeoutError:
        raise SweepFailed(f"The worker does not answer within {OPEN_LIMIT_S:.0f} s.") from None


def _folder(job: Job, home: Path, run_id: str, opened: dict[str, Any]) -> RunFolder:
    run = Run(
        run_id=run_id,
        source="local",
        created=utc_now(),
        title=f"{job.sweep.name} on {opened['environment'].get('gpu_name')}",
        protocol=protocol_of(job.protocol).label,
        seed=job.seed,
        command=job.command(opened["device"]["id"]),
        sweep=opened["sweep"],
        implementations=opened["implementations"],
        against=opened.get("against"),
        **opened["environment"],
    )
    if not job.resume:
        return RunFolder.create(home, run)
    folder = RunFolder.open(home, job.resume)
    refuse_differences(folder.run(), run, _SAME)
    return folder


def refuse_differences(before: Run, now: Run, fields: Iterable[str]) -> None:
    """Raise Refused if a resumed run would differ from its first part in one of the fields."""
    for name in fields:
        if getattr(before, name) != getattr(now, name):
            raise Refused(
                f"Run {before.run_id!r} was measured with {name} {getattr(before, name)!r}, now it is "
                f"{getattr(now, name)!r}, so the numbers cannot be compared. Start a new run."
            )


def can_compile_ahead(device: str | None) -> bool:
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
        return _compiled_words(message, time.monotonic() - begun)
    except EOFError:
        return f"Nothing was compiled ahead. {handle.describe_loss()}"
    except TimeoutError:
        handle.kill()
        return f"Compiling ahead was given up after {SILENCE_S:.0f} s without progress."


def _compiled_words(message: dict[str, object], wall_s: float) -> str:
    if message["kernels"] is None:
        return "Nothing was compiled ahead, because the process for it ended; each kernel is compiled when needed."
    words = "Compiled {kernels} kernels ahead in {wall:.1f} s, {seconds:.1f} s of work in parallel."
    failed = " {failed} failed: {fault}" if message["failed"] else ""
    return (words + failed).format(wall=wall_s, **message)
