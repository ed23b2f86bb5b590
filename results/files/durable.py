"""Writes that are on disk when they return, and locks that end with their process. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

REASONS = {
    errno.ENOSPC: "the disk is full; free some space and {retry}",
    errno.EDQUOT: "the disk quota is used up; free some space and {retry}",
    errno.EFBIG: "the file size limit is reached; raise it (ulimit -f) and {retry}",
    errno.EROFS: "the file system is read-only; set ATTNBENCH_HOME to a folder that can be written",
    errno.EACCES: "there is no permission to write; set ATTNBENCH_HOME to a folder that can be written",
    errno.EPERM: "there is no permission to write; set ATTNBENCH_HOME to a folder that can be written",
}


def reason(error: OSError, retry: str = "resume the run") -> str:
    """Return why a file cannot be written and what to do about it, as the end of a sentence."""
    return REASONS.get(error.errno, (error.strerror or str(error)).lower()).format(retry=retry)


def append_line(fd: int, line: bytes) -> None:
    """Write and sync one line, after ending a line that a crash cut; undo it all if that fails."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        written = 0
        while written < len(line):
            written += os.write(fd, line[written:])
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        raise


def write_synced(path: Path, content: str | bytes) -> None:
    """Write a file; on return it is on disk."""
    with open(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a crash."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def take_lock(fd: int, kind: int, seconds: float = 0.0) -> bool:
    """Take an flock, trying for that long; False if somebody else holds it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
