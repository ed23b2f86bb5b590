"""The worker of the moment, and how to get the next. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from runner import sweeps
from runner.job import Cancelled, Job, Refused
from runner.workerprocess import GRACE_S, Log, WorkerProcess, describe_exit

OPEN_LIMIT_S = 300.0  # importing torch from a cold network disk takes long
_POLL_S = 0.2


class Crew:
    """The worker of the moment, and how to get the next."""

    def __init__(self, job: Job, command: tuple[str, ...], stop: Callable[[], bool]) -> None:
        self.log = Log()
        self._job, self._command, self.stop = job, command, stop
        self.on_wait: Callable[[], None] = lambda: None  # called now and then while no message comes
        self._worker: WorkerProcess | None = None

    def open(self, *, plan: bool, ahead: bool = False) -> dict[str, Any]:
        """Start a worker and let it find the device; with `plan` its answer holds the cells, with `ahead` it gets a
        helper to compile before it measures.

        Raises Refused if it cannot do what is asked, and whatever `receive` raises.
        """
        self._worker = WorkerProcess(self._command, self.log)
        job = self._job
        self._worker.send(
            {
                "do": "open",
                "device": job.device,
                "sweep": sweeps.to_json(job.sweep),
                "implementations": job.implementations,
                "protocol": job.protocol,
                "seed": job.seed,
                "plan": plan,
                "ahead": ahead,
            }
        )
        answer = self.receive(time.monotonic() + OPEN_LIMIT_S)
        if answer["event"] == "refused":
            raise Refused(answer["message"])
        return answer

    def send(self, message: dict[str, Any]) -> None:
        """Raises EOFError if the worker is gone."""
        self._worker.send(message)

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message. Raises EOFError if the worker is gone, TimeoutError after the deadline, or Cancelled."""
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
        """How the worker ended; it is gone after this."""
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
        """Whether there is a worker."""
        return self._worker is not None
