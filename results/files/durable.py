"""Writes that are on disk when they return, and locks that end with their process. Standard library only."""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_DRAFT, _DRAFTS_BEFORE = ".draft-", (".new-", ".upload-")
_ABANDONED_S = 60.0  # a draft without a lock can be that old while its process locks it
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


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file that other processes see whole or not at all."""
    written = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        write_synced(written, content)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a crash."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def draft(directory: Path) -> Iterator[Path]:
    """Make a hidden folder for what is moved into `directory` when it is complete; remove what is left of it.

    Drafts of processes that were killed are removed, too: a draft is locked for as long as its process lives.
    """
    remove_abandoned_drafts(directory)
    path = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=directory))
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can lock a folder
            fcntl.flock(fd, fcntl.LOCK_SH)
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def remove_abandoned_drafts(directory: Path) -> None:
    """Remove the drafts of processes that were killed."""
    for path in (each for prefix in (_DRAFT, *_DRAFTS_BEFORE) for each in directory.glob(f"{prefix}*")):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY)
            try:
                if time.time() - os.fstat(fd).st_mtime > _ABANDONED_S and take_lock(fd, fcntl.LOCK_EX):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds the flock of a file; nobody does if it cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not take_lock(fd, fcntl.LOCK_SH)
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
