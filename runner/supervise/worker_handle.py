"""A worker as the supervisor holds it: started, spoken to, its output kept, ended, followed by the next. No torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results.paths import REPOSITORY
from runner import sweeps
from runner.ipc import Channel
from runner.supervise.job import Cancelled, Job, Refused

COMMAND = (sys.executable, "-m", "runner.worker")
GRACE_S = 10.0  # between SIGTERM and SIGKILL
OPEN_LIMIT_S = 300.0  # importing torch from a cold network disk takes long
_POLL_S = 0.2


class Log:
    """Collects what workers print; the last lines explain a crash. Kept in memory until the run has a folder."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._early: list[bytes] = []
        self._last: deque[str] = deque(maxlen=20)
        self._guard = threading.Lock()

    def write_to(self, path: Path) -> None:
        """Append to this file from now on, beginning with what was printed before."""
        with self._guard:
            self._path = path
            early, self._early = self._early, []
        for line in early:
            self._append(line)

    def add(self, line: bytes) -> None:
        """Add a printed line."""
        with self._guard:
            self._last.append(line.decode(errors="replace").strip())
            if self._path is None:
                self._early.append(line)
                return
        self._append(line)

    def note(self, line: str) -> None:
        """Write a line of the supervisor's own."""
        self._append(f"{line}\n".encode())

    def last_words(self) -> str | None:
        """Return the last line with a message in it."""
        with self._guard:
            return next((line[:300] for line in reversed(self._last) if line), None)

    def forget(self) -> None:
        """Keep no last words of an earlier worker."""
        with self._guard:
            self._last.clear()

    def _append(self, line: bytes) -> None:
        with contextlib.suppress(OSError), open(self._path, "ab") as file:  # a full disk must not stop the sweep twice
            file.write(line)


class WorkerProcess:
    """A running worker. Its process group is its own, so that a Ctrl-C in a terminal reaches the supervisor alone."""

    def __init__(self, command: tuple[str, ...], log: Log, place: Path = REPOSITORY) -> None:
        here_read, there_write = os.pipe()
        there_read, here_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, "--read-fd", str(there_read), "--write-fd", str(there_write), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(there_read, there_write),
                start_new_session=True,
                cwd=place,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        finally:
            os.close(there_read)
            os.close(there_write)
        self._channel = Channel(here_read, here_write)
        log.forget()
        self._reader = threading.Thread(target=self._read_output, args=(log,), daemon=True)
        self._reader.start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the worker. Raises EOFError if the worker is gone."""
        try:
            self._channel.send(message)
        except BrokenPipeError as error:
            raise EOFError(str(error)) from error

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message, None if none came in that time. Raises EOFError if the worker is gone."""
        return self._channel.receive(timeout_s)

    def end(self, *, grace_s: float = 0.0) -> int:
        """Stop it, first by SIGTERM if there is a grace, then by SIGKILL; returns its exit code as Popen gives it."""
        if grace_s and self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        code = self._process.wait()
        self._signal(signal.SIGKILL)  # whatever it left in its group
        self._reader.join(timeout=2.0)
        self._process.stdout.close()
        self._channel.close()
        return code

    def close(self) -> None:
        """Let it finish by itself, then make sure."""
        with contextlib.suppress(EOFError):
            self.send({"do": "close"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self.end()

    def exit_code(self, timeout_s: float = 5.0) -> int | None:
        """Return how a worker whose channel ended came to its end; None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read_output(self, log: Log) -> None:
        for line in self._process.stdout:
            log.add(line)


def describe_exit(code: int | None, last_words: str | None) -> str:
    """Return how a worker ended, in a sentence."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else "unknown"
        how = f"The worker was killed by signal {-code} ({name})"
    else:
        how = f"The worker ended with exit code {code}"
    return f"{how}; its last words: {last_words}" if last_words else f"{how}."


class WorkerHandle:
    """The worker of the moment, and how to get the next."""

    def __init__(
        self,
        job: Job,
        command: tuple[str, ...],
        stop: Callable[[], bool],
        *,
        log: Log | None = None,
        place: Path = REPOSITORY,  # the tree whose code it runs
    ) -> None:
        self.log = log or Log()
        self._job, self._command, self._place, self.stop = job, command, place, stop
        self.on_wait: Callable[[], None] = lambda: None  # called now and then while no message comes
        self._worker: WorkerProcess | None = None

    def open(self, *, plan: bool, ahead: bool = False) -> dict[str, Any]:
        """Start a worker and let it find the device; with `plan` its answer holds the cells, with `ahead` it gets a
        helper to compile before it measures.

        Raises Refused if it cannot do what is asked, and whatever `receive` raises.
        """
        self.begin(plan=plan, ahead=ahead)
        return self.opened()

    def begin(self, *, plan: bool, ahead: bool = False, turns: bool = False) -> None:
        """Start a worker and tell it what to open; with `turns` it waits before each round until it is told to go."""
        self._worker = WorkerProcess(self._command, self.log, self._place)
        job = self._job
        self._worker.send(
            {
                "do": "open",
                "device": job.device,
                "sweep": sweeps.to_json(job.sweep),
                "implementations": job.implementations,
                "capabilities": job.capabilities,
                "protocol": job.protocol,
                "seed": job.seed,
                "plan": plan,
                "ahead": ahead,
                "turns": turns,
            }
        )

    def opened(self) -> dict[str, Any]:
        """Return the answer to what `begin` told it. Raises as `open` does."""
        answer = self.receive(time.monotonic() + OPEN_LIMIT_S)
        if answer["event"] == "refused":
            raise Refused(answer["message"])
        return answer

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the worker. Raises EOFError if the worker is gone."""
        self._worker.send(message)

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message. Raises EOFError if the worker is gone, TimeoutError after the deadline, or
        Cancelled."""
        while True:
            if self.stop():
                raise Cancelled
            message = self._worker.receive(_POLL_S)
            if message is not None:
                return message
            self.on_wait()
            if time.monotonic() > deadline:
                raise TimeoutError

    def describe_loss(self) -> str:
        """Return how the worker ended; it is gone after this."""
        code = self._worker.exit_code()
        self.kill()
        return describe_exit(code, self.log.last_words())

    def kill(self) -> None:
        """End the worker at once."""
        if self._worker:
            self._worker.end()
        self._worker = None

    def close(self) -> None:
        """Let a worker that waits for a message end by itself."""
        if self._worker:
            self._worker.close()
        self._worker = None

    def dismiss(self) -> None:
        """End the worker, whatever it is at: by SIGTERM, and if it does not listen by SIGKILL."""
        if self._worker:
            self._worker.end(grace_s=GRACE_S)
        self._worker = None

    @property
    def present(self) -> bool:
        """Return whether there is a worker."""
        return self._worker is not None
