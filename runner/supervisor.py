"""Runs a sweep through workers and writes every number down. No torch, so that no fault of a kernel reaches it.

A worker announces each step with the cell that it may cost. If it then crashes, hangs or is killed, that cell gets its
status here, a new worker starts, and the sweep goes on with the cells that have none.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results.journal import RunFolder
from results.records import Run
from runner import ahead
from runner.cells import cell_from_json, utc_now
from runner.crew import OPEN_LIMIT_S, Crew
from runner.job import Job, Refused, SweepFailed
from runner.locks import device_lock
from runner.progress import Progress
from runner.protocol import PROTOCOLS
from runner.sweeping import Sweeping
from runner.workerprocess import COMMAND

MOST_TRACES = 6  # cells of a sustained run
_LOCK_WAIT_RESUMED_S = 5.0  # the worker of a killed supervisor may need a moment to die

# What must be the same when a run is resumed, or its numbers would not be comparable.
_SAME = ("gpu_uuid", "gpu_name", "torch", "triton", "kernel_hash", "protocol")


def new_run_id(sweep: str) -> str:
    """A folder name that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{sweep}-{secrets.token_hex(3)}"


def supervise(
    job: Job,
    home: Path,
    *,
    progress: Progress,
    stop: Callable[[], bool],
    worker_command: tuple[str, ...] = COMMAND,
) -> RunFolder:
    """Measure everything that has no status yet; returns the run's folder once every cell has one.

    Raises Refused, DeviceBusy, Cancelled, SweepFailed or JournalError.
    """
    begun = time.monotonic()
    crew = Crew(job, worker_command, stop)
    try:
        opened = _open(crew, job)
        _refuse_long_traces(job, opened["cells"])
        run_id = job.resume or job.run_id or new_run_id(job.sweep.name)
        wait_s = _LOCK_WAIT_RESUMED_S if job.resume else 0.0
        with device_lock(home, opened["device"]["lock"], run_id, wait_s=wait_s):
            try:
                return _sweep(job, home, run_id, opened, crew, progress, begun)
            finally:
                crew.dismiss()  # before the device is given free
    finally:
        crew.dismiss()


def _refuse_long_traces(job: Job, cells: list[dict[str, Any]]) -> None:
    seconds, count = PROTOCOLS[job.protocol].trace_s, sum(not cell["reason"] for cell in cells)
    if seconds and count > MOST_TRACES:
        raise Refused(
            f"{job.protocol} takes {seconds:.0f} s for each cell and these are {count}; at most {MOST_TRACES} are "
            "possible. Narrow them, such as --implementations triton_fa2 --set modes=fwd --set seqlen=4096."
        )


def _sweep(
    job: Job, home: Path, run_id: str, opened: dict[str, Any], crew: Crew, progress: Progress, begun: float
) -> RunFolder:
    cells = [cell_from_json(record) for record in opened["cells"]]
    folder = _folder(job, home, run_id, opened)
    with folder.lock():
        crew.log.write_to(folder.log_path)
        sweeping = Sweeping(job, folder, cells, tuple(opened["sweep"]["timings"]), crew, progress, begun)
        sweeping.run(ahead=bool(opened.get("ahead")))
        crew.close()
    return folder


def _open(crew: Crew, job: Job) -> dict[str, Any]:
    try:
        return crew.open(plan=True, ahead=ahead.is_possible(job.device))
    except EOFError:
        raise SweepFailed(f"The worker does not start. {crew.describe_loss()}") from None
    except TimeoutError:
        raise SweepFailed(f"The worker does not answer within {OPEN_LIMIT_S:.0f} s.") from None


def _folder(job: Job, home: Path, run_id: str, opened: dict[str, Any]) -> RunFolder:
    run = Run(
        run_id=run_id,
        source="local",
        created=utc_now(),
        title=f"{job.sweep.name} on {opened['environment'].get('gpu_name')}",
        protocol=PROTOCOLS[job.protocol].label,
        seed=job.seed,
        command=job.command(opened["device"]["id"]),
        sweep=opened["sweep"],
        **opened["environment"],
    )
    if not job.resume:
        return RunFolder.create(home, run)
    folder = RunFolder.open(home, job.resume)
    before = folder.run()
    for name in _SAME:
        if getattr(before, name) != getattr(run, name):
            raise Refused(
                f"Run {run_id!r} was taken with {name} {getattr(before, name)!r}, this would be "
                f"{getattr(run, name)!r}: the numbers could not be compared. Start a new run."
            )
    return folder
