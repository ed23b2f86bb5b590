"""JSON lines between the supervisor and its worker, over separate pipes that library output cannot reach.

A process that calls `die_with` ends with its parent. Standard library only.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)


class Channel:
    """One end of the conversation."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Write a message. Raises BrokenPipeError if the other end is closed."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._write_fd, data) :]

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, or None after the timeout. Raises EOFError if the other end is closed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._read_fd], [], [], left)[0]:
                return None
            data = os.read(self._read_fd, 1 << 16)
            if not data:
                raise EOFError("The other end of the channel is closed.")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        """Close this end."""
        os.close(self._read_fd)
        os.close(self._write_fd)


def die_with(parent: int) -> None:
    """Let the operating system kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call above
        sys.exit(0)
