"""JSON messages between the supervisor and its worker, over a separate socket that library output cannot reach.

A process that calls `die_with` ends with its parent. Standard library only.
"""

import ctypes
import json
import os
import signal
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)


class Channel:
    """One end of the conversation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.fileno, self.close = connection.fileno, connection.close

    def send(self, message: dict[str, Any]) -> None:
        """Write a message. Raises BrokenPipeError if the other end is closed."""
        self._connection.send_bytes(json.dumps(message, separators=(",", ":")).encode())

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, or None after the timeout. Raises EOFError if the other end is closed."""
        try:
            return json.loads(self._connection.recv_bytes()) if self._connection.poll(timeout_s) else None
        except ConnectionResetError as error:  # it was closed before it had read everything
            raise EOFError(str(error)) from error


def both_ends() -> tuple[Channel, Channel]:
    """Return a new conversation."""
    here, there = Pipe()
    return Channel(here), Channel(there)


def die_with(parent: int) -> None:
    """Let the operating system kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call above
        sys.exit(0)
