"""Starts, watches and cancels sweeps from another process, such as the app. Never imports torch.

Questions that need torch go to `python -m runner` in a separate process. A started sweep is detached and goes on when
the process that started it ends.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.files import journal
from results.files.journal import JournalError, RunFolder, State
from results.paths import PUBLISHED, REPOSITORY
from runner import sweeps
from runner.protocol import PROTOCOLS
from runner.sweeps import Sweep, SweepError
from runner.sweeps.given import GivenSweep, sweep_of

MAX_CELLS = 20_000
BOUNDS = dict.fromkeys(("seqlen", "context", "window_size"), 1_048_576)
BOUNDS |= dict.fromkeys(("head_dim", "head_dim_v", "num_heads", "num_kv_heads"), 1024)
BOUNDS |= {"batch": 65_536, "query_tokens": 16}
_DEVICE = re.compile(r"cpu|cuda(:\d{1,2})?")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_ADDRESS = re.compile(r"[A-Za-z0-9._-]{0,253}(:\d{1,5})?")
_GPUS = re.compile(r"[A-Za-z0-9_-]{1,40}(,[A-Za-z0-9_-]{1,40}){0,20}")
_CONFIRMED = ("against", "against-python", "address")
_COMMIT = re.compile("[0-9a-f]{40}")
CLUSTER_MODES = ("spread", "each")
_ANSWER_LIMIT_S = 180.0
_START_LIMIT_S = 180.0
_LEAST_FREE_BYTES = 64 * 1024
_POLL_S = 0.05
_QUIET_S = 900.0  # a running sweep writes its state about every second; after this time without one it has ended

_children: list[subprocess.Popen[bytes]] = []  # reaped in every call of this module


class LaunchError(ValueError):
    """A sweep that cannot be started, watched or canceled; the message says what is possible."""


@dataclass(frozen=True)
class ClusterChoice:
    """The cards of a Ray cluster that measure, and how they share the work."""

    address: str = ""  # host:port of the head node; empty: the GPUs of this machine
    gpus: str = "all"  # all, a number, kinds such as H200,H100, or "kinds": one of each kind
    mode: str = "spread"  # spread: one sweep over equal cards; each: the whole sweep on each card
    one_per_host: bool = False  # whether only one card of a host measures at a time

    @property
    def words(self) -> list[str]:
        """Return the options that select it."""
        words = ["--on", "ray", "--gpus", self.gpus, "--mode", self.mode]
        words += ["--address", self.address] if self.address else []
        return words + ["--one-per-host"] * self.one_per_host


@dataclass(frozen=True)
class SweepRequest:
    """A request to measure a sweep."""

    sweep: str  # name of the sweep; not used with `cases_of`
    device: str = "cpu"
    implementations: tuple[str, ...] | None = None  # None: the sweep's own
    changes: dict[str, str] = field(default_factory=dict)  # values of axes as typed: {"seqlen": "1024,2048"}
    protocol: str = "standard"
    cases_of: str = ""  # run whose cases are measured instead of a sweep's
    cluster: ClusterChoice | None = None  # None: a device of this machine


@dataclass(frozen=True, kw_only=True)
class RunStatus(State):
    """The status of a run, with its state as it is now: running, finished, cancelled, failed or crashed."""

    run_id: str
    sweep: str | None
    device: str | None  # name of the device
    protocol: str | None = None  # quick, standard or sustained

    @property
    def cards_s(self) -> float | None:
        """Return the total seconds of all cards; None for a run of one card."""
        return self.costs.get("total") if self.costs and "wall" in self.costs else None


def devices() -> list[dict[str, Any]]:
    """Return every device of this machine: id, name, type, and the run that holds it (`busy`). Raises LaunchError."""
    return listing()["devices"]


def listing(device: str | None = None) -> dict[str, Any]:
    """Return devices, implementations with the reason against each on a device, and sweeps. Raises LaunchError."""
    return _ask(["list", "--json", *(["--device", device] if device else [])])


def cluster(address: str = "") -> dict[str, Any]:
    """Return the nodes of a Ray cluster with their GPUs and the number of free ones. Raises LaunchError.

    Without an address, the call starts and ends a cluster of this machine only.
    """
    _check_cluster(ClusterChoice(address=address))
    return _ask(["list", "--on", "ray", "--json", *(["--address", address] if address else [])])


def plan(request: SweepRequest) -> dict[str, Any]:
    """Return the plan of a request: cells with reasons and estimates, and totals. Raises LaunchError."""
    checked(request)
    return _ask(["plan", *_words(request), "--json"])


def start(request: SweepRequest, home: Path | None = None) -> str:
    """Start a detached sweep and return its run_id once it is running.

    Raises LaunchError, for example if another sweep holds the device.
    """
    sweep = checked(request)
    run_id = journal.new_run_id(sweep.name)
    _spawn([*_words(request), "--run-id", run_id], run_id, Path(home or journal.home()))
    return run_id


def resume(run_id: str, home: Path | None = None, *, confirmed: Sequence[str] = ()) -> None:
    """Resume an interrupted run. Raises LaunchError, for example if it is running.

    `confirmed` are the words of `named_by_the_run` that the user has seen; without them such a run is refused.
    """
    folder = _folder(run_id, home)
    if folder.is_alive():
        raise LaunchError(f"Run {run_id!r} is running.")
    _spawn(["--resume", run_id, *confirmed], run_id, Path(home or journal.home()))


def named_by_the_run(run_id: str, home: Path | None = None) -> tuple[str, ...]:
    """Return the options that a user confirms before a run is resumed; see `to_confirm`."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name in _CONFIRMED:
        parser.add_argument(f"--{name}")
    try:
        return to_confirm(parser.parse_known_args(words_of(_folder(run_id, home).run().command))[0])
    except (LaunchError, JournalError, argparse.ArgumentError):
        return ()


def to_confirm(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the options of a recorded command that execute a program or connect to an address, with their values.

    A run folder can come from anybody, so these options are not taken from its record: the user repeats them.
    """
    found = {f"--{name}": getattr(options, name.replace("-", "_")) for name in _CONFIRMED}
    if _COMMIT.fullmatch(found["--against"] or ""):  # of this repository
        del found["--against"]
    return tuple(f"{name}={value}" for name, value in found.items() if value is not None)


def words_of(command: object) -> list[str]:
    """Return the words of a recorded command; none if it is missing or malformed."""
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return []


def runs(home: Path | None = None) -> list[RunStatus]:
    """Return the status of every run of the home, newest first."""
    _reap()
    return [_status(folder) for folder in journal.run_folders(Path(home or journal.home()))]


def running(home: Path | None = None) -> list[RunStatus]:
    """Return the status of running sweeps, newest first; fast enough for polling with any number of runs."""
    _reap()
    lately = time.time() - _QUIET_S
    folders = [folder for folder in journal.folders_in(Path(home or journal.home()) / "runs") if _moved(folder, lately)]
    found = [_status(folder) for folder in sorted(folders, key=lambda folder: folder.run_id, reverse=True)]
    return [status for status in found if status.state == "running"]


def status(run_id: str, home: Path | None = None) -> RunStatus:
    """Return the status of a run. Raises LaunchError if there is no run of that name."""
    _reap()
    return _status(_folder(run_id, home))


def cancel(run_id: str, home: Path | None = None) -> None:
    """Request that a run stop, which its supervisor does within seconds. Raises LaunchError if it is not running."""
    _reap()
    folder = _folder(run_id, home)
    condition = folder.condition()  # a run that has ended may still hold its lock for a moment
    if condition != "running":
        raise LaunchError(f"Run {run_id!r} is not running; it is {condition}.")
    try:
        folder.request_cancel()
    except JournalError as error:
        raise LaunchError(str(error)) from error


def checked(request: SweepRequest) -> Sweep:
    """Return the sweep of a request. Raises LaunchError if a value is out of bounds."""
    if not _DEVICE.fullmatch(request.device):
        raise LaunchError(f"Unknown device {request.device!r}. Possible: cpu, cuda:0, cuda:1, ...")
    if request.cluster:
        _check_cluster(request.cluster)
    if request.protocol not in PROTOCOLS:
        raise LaunchError(f"Unknown protocol {request.protocol!r}. Possible: {', '.join(PROTOCOLS)}.")
    if request.implementations == ():
        raise LaunchError("No implementation is chosen; choose at least one.")
    for name in request.implementations or ():
        if not re.fullmatch(r"[a-z0-9_]+", name):
            raise LaunchError(f"{name!r} is not the name of an implementation.")
    _check_bounds(request.changes)
    try:
        sweep = _chosen(request)
    except SweepError as error:
        raise LaunchError(str(error)) from error
    names = request.implementations or sweep.implementations
    count = len(sweep.cases()) * len(names) * len(sweep.modes)
    if count > MAX_CELLS:
        raise LaunchError(f"This makes {count} cells; at most {MAX_CELLS} are possible. Choose fewer values.")
    if request.protocol == "sustained":
        if count != 1:
            raise LaunchError(f"A trace takes half a minute a cell and this makes {count}; choose a single one.")
        if not sweep.timings:
            raise LaunchError("A trace needs a timing; this sweep takes errors alone.")
    return sweep


def _chosen(request: SweepRequest) -> Sweep:
    if not request.cases_of:
        return sweeps.override(sweeps.get(request.sweep), request.changes)
    if not RUN_ID.fullmatch(request.cases_of):
        raise LaunchError(f"{request.cases_of[:80]!r} is not the name of a run.")
    return cases_of(request.cases_of, journal.home())[0]


def cases_of(run_id: str, home: Path) -> tuple[GivenSweep, list[str]]:
    """Return the sweep over a run's cases, and sentences on the cases that cannot be measured. Raises SweepError."""
    try:
        folder = RunFolder.open(home, run_id)
    except JournalError as error:
        folder = RunFolder(PUBLISHED / Path(run_id).name)
        if not folder.run_path.is_file():
            raise SweepError(str(error)) from error
    try:
        return sweep_of(folder.run_id, folder.read()[0])
    except JournalError as error:
        raise SweepError(str(error)) from error


def _check_cluster(choice: ClusterChoice) -> None:
    """Refuse an invalid address, choice of cards or mode, because they become part of a command line."""
    if not _ADDRESS.fullmatch(choice.address):
        raise LaunchError(
            f"{choice.address!r} is not an address; give host:port of the cluster's head node, such as gpu1:6379."
        )
    if not _GPUS.fullmatch(choice.gpus):
        raise LaunchError(f"{choice.gpus!r} selects no cards; possible are all, a number, and kinds such as H200,H100.")
    if choice.mode not in CLUSTER_MODES:
        raise LaunchError(f"Unknown mode {choice.mode!r}. Possible: {', '.join(CLUSTER_MODES)}.")


def _check_bounds(changes: dict[str, str]) -> None:
    combinations = 1
    for axis, text in changes.items():
        values = text.split(",")
        combinations *= len(values)
        for value in values:
            digits = value.strip()
            if axis in BOUNDS and digits.isdecimal() and (len(digits) > 7 or int(digits) > BOUNDS[axis]):
                raise LaunchError(f"{axis} {digits} is too large; at most {BOUNDS[axis]} is possible.")
    if combinations > MAX_CELLS:
        raise LaunchError(f"This makes {combinations} combinations; at most {MAX_CELLS} cells are possible.")


def _words(request: SweepRequest) -> list[str]:
    what = ["--cases-of", request.cases_of] if request.cases_of else [request.sweep]
    words = [*what, "--device", request.device, f"--{request.protocol}"]
    if request.implementations:
        words += ["--implementations", ",".join(request.implementations)]
    words += request.cluster.words if request.cluster else []
    return words + [word for axis, values in request.changes.items() for word in ("--set", f"{axis}={values}")]


def _ask(words: list[str]) -> dict[str, Any]:
    _reap()
    command = [sys.executable, "-m", "runner", *words]
    try:
        answer = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_ANSWER_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"`python -m runner {words[0]}` did not answer: {error}") from error
    if answer.returncode:
        raise LaunchError(_last_line(answer.stderr) or f"`python -m runner {words[0]}` failed.")
    return json.loads(answer.stdout)


def _spawn(words: list[str], run_id: str, home: Path) -> None:
    _reap()
    log = home / "logs" / f"{run_id}.txt"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner", "run", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                cwd=REPOSITORY,
                env={**os.environ, "ATTNBENCH_HOME": str(home)},
            )
    except OSError as error:
        raise LaunchError(f"The sweep cannot be started: {error.strerror} ({log}).") from error
    _children.append(process)
    try:
        _wait_until_under_way(process, RunFolder(home / "runs" / run_id))
    except LaunchError as error:
        reason = _last_line(log.read_text(errors="replace"))
        log.unlink()
        # The disk had no room for the error message.
        if not reason and shutil.disk_usage(home).free < _LEAST_FREE_BYTES:
            reason = f"The sweep cannot be started in {home}: the disk is full; free some space and start again."
        raise LaunchError(reason or str(error)) from None


def _wait_until_under_way(process: subprocess.Popen[bytes], folder: RunFolder) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not folder.is_alive():
        code = process.poll()
        if code == 0:
            return
        if code is not None:
            raise LaunchError(f"The sweep ended at once with exit code {code}.")
        if time.monotonic() > deadline:
            process.terminate()
            raise LaunchError(f"The sweep did not get under way within {_START_LIMIT_S:.0f} s.")
        time.sleep(_POLL_S)


def _moved(folder: RunFolder, since: float) -> bool:
    """Return whether a run's folder has changed since then, as by every rename of its state file."""
    try:
        return folder.path.stat().st_mtime >= since
    except OSError:
        return False


def _status(folder: RunFolder) -> RunStatus:
    condition, state = folder.look()
    try:
        run = folder.run()
        sweep, device, protocol = run.sweep.get("name"), run.gpu_name, (run.protocol or "").split("/")[0] or None
    except JournalError:
        sweep = device = protocol = None
    said = {**(vars(state) if state else {}), "state": condition}
    return RunStatus(**said, run_id=folder.run_id, sweep=sweep, device=device, protocol=protocol)


def _folder(run_id: str, home: Path | None) -> RunFolder:
    try:
        return RunFolder.open(Path(home or journal.home()), run_id)
    except JournalError as error:
        raise LaunchError(str(error)) from error


def _reap() -> None:
    _children[:] = [process for process in _children if process.poll() is None]


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None
