"""The supervisor's side of a worker: start, messages, output, end and replacement. No torch."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from results.paths import REPOSITORY
from runner import sweeps
from runner.ipc import both_ends
from runner.supervise.job import Cancelled, Job, Refused

COMMAND = (sys.executable, "-m", "runner.worker")
GRACE_S = 10.0  # between SIGTERM and SIGKILL
OPEN_LIMIT_S = 300.0  # importing torch from a cold network disk can take minutes
_POLL_S = 0.2
_EXIT_S = 5.0  # how long a worker whose channel is closed may take to end
_TOLD = ("device", "implementations", "capabilities", "protocol", "seed")  # fields of a job that its worker is given


class Log:
    """Collects the output of workers, in memory until the run has a folder. The last lines explain a crash."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._early: list[bytes] = []
        self._last: deque[str] = deque(maxlen=20)
        self._guard = threading.Lock()

    def write_to(self, path: Path) -> None:
        """Append to this file from now on, beginning with the lines collected so far."""
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
        """Write a line of the supervisor."""
        self._append(f"{line}\n".encode())

    def last_words(self) -> str | None:
        """Return the last line that is not empty."""
        with self._guard:
            return next((line[:300] for line in reversed(self._last) if line), None)

    def forget(self) -> None:
        """Drop the last lines of an earlier worker."""
        with self._guard:
            self._last.clear()

    def _append(self, line: bytes) -> None:
        with contextlib.suppress(OSError), open(self._path, "ab") as file:  # a full disk must not stop the sweep twice
            file.write(line)


def describe_exit(code: int | None, last_words: str | None) -> str:
    """Return a sentence on how a worker ended."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else "unknown"
        how = f"The worker was killed by signal {-code} ({name})"
    else:
        how = f"The worker ended with exit code {code}"
    return f"{how}; its last words: {last_words}" if last_words else f"{how}."


@dataclass
class Waiting:
    """What happens while a worker's message is awaited."""

    stop: Callable[[], bool]  # tells whether the sweep is to stop
    call: Callable[[], None] = lambda: None  # called repeatedly


class WorkerHandle:
    """The current worker, and the means to start another one.

    Workers run in separate process groups, so that Ctrl-C in a terminal reaches the supervisor only.
    """

    # `place` is the root of the source tree that the worker runs.
    def __init__(
        self, job: Job, command: tuple[str, ...], waiting: Waiting, *, log: Log | None = None, place: Path = REPOSITORY
    ) -> None:
        self.log = log or Log()
        self._job, self._command, self._place, self.waiting = job, command, place, waiting
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, *, ahead: bool = False) -> dict[str, Any]:
        """Start a worker and return its answer, which has the device and the cells of the plan.

        `ahead` gives the worker a helper that compiles before measuring. Raises Refused, EOFError, TimeoutError or
        Cancelled.
        """
        self.begin(ahead=ahead)
        return self.opened()

    def begin(self, *, ahead: bool = False, turns: bool = False) -> None:
        """Start a worker and send it the sweep; with `turns` it waits for a message before each round."""
        self._channel, there = both_ends()
        try:
            self._process = subprocess.Popen(
                [*self._command, "--fd", str(there.fileno()), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(there.fileno(),),
                start_new_session=True,
                cwd=self._place,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        finally:
            there.close()
        self.log.forget()
        self._reader = threading.Thread(target=self._read_output, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        told = {name: getattr(self._job, name) for name in _TOLD}
        sweep = sweeps.to_json(self._job.sweep)
        self.send({"do": "open", "sweep": sweep, "ahead": ahead, "turns": turns, **told})

    def opened(self) -> dict[str, Any]:
        """Return the answer to `begin`. Raises Refused, EOFError, TimeoutError or Cancelled."""
        answer = self.receive(time.monotonic() + OPEN_LIMIT_S)
        if answer["event"] == "refused":
            raise Refused(answer["message"])
        return answer

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the worker. Raises EOFError if it has ended."""
        try:
            self._channel.send(message)
        except BrokenPipeError as error:
            raise EOFError(str(error)) from error

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message. Raises EOFError if the worker has ended, TimeoutError or Cancelled."""
        while True:
            if self.waiting.stop():
                raise Cancelled
            message = self._channel.receive(_POLL_S)
            if message is not None:
                return message
            self.waiting.call()
            if time.monotonic() > deadline:
                raise TimeoutError

    def describe_loss(self) -> str:
        """Return a sentence on how the worker ended, and forget the worker."""
        self._wait(_EXIT_S)
        code = self._process.returncode
        self.kill()
        return describe_exit(code, self.log.last_words())

    def kill(self, *, grace_s: float = 0.0) -> None:
        """Stop the worker by SIGTERM if there is a grace period, and by SIGKILL if it does not end."""
        if self._process is None:
            return
        if grace_s and self._process.poll() is None:
            self._signal(signal.SIGTERM)
            self._wait(grace_s)
        self._signal(signal.SIGKILL)  # also ends the rest of its process group
        self._process.wait()
        self._reader.join(timeout=2.0)
        self._process.stdout.close()
        self._channel.close()
        self._process = None

    def close(self) -> None:
        """Ask a worker that waits for a message to end."""
        if self._process:
            with contextlib.suppress(EOFError):
                self.send({"do": "close"})
            self._wait(GRACE_S)
            self.kill()

    @property
    def present(self) -> bool:
        """Return whether there is a worker."""
        return self._process is not None

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read_output(self, output: IO[bytes]) -> None:
        for line in output:
            self.log.add(line)
