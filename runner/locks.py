"""Device locks, which allow one sweep at a time. They are flocks in the home, released when their process ends."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from results.files.durable import is_locked, take_lock
from results.files.journal import JournalError

_READERS_LOOK_S = 0.2  # longer than `holder` keeps its shared lock


class DeviceBusy(RuntimeError):
    """Another sweep holds the device; the message names it."""


@contextlib.contextmanager
def device_lock(home: Path, name: str, run_id: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a device ("gpu-<hash>" or "cpu") for a run. Raises DeviceBusy if another sweep has it after `wait_s`."""
    path = _path(home, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise JournalError(
            f"Cannot lock the device at {path}: {error.strerror}; set ATTNBENCH_HOME to a folder that can be written."
        ) from error
    try:
        if not take_lock(fd, fcntl.LOCK_EX, max(wait_s, _READERS_LOOK_S)):
            other = _holder_of(path)
            raise DeviceBusy(f"The device is taken by {other}; wait for it, cancel it, or choose another device.")
        with contextlib.suppress(OSError):  # on a full disk the lock has no name
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps({"run_id": run_id, "pid": os.getpid()}).encode(), 0)
        yield
    finally:
        os.close(fd)


def holder(home: Path, name: str) -> str | None:
    """Return the run that holds a device now; None if it is free."""
    path = _path(home, name)
    return _holder_of(path) if is_locked(path) else None


def _holder_of(path: Path) -> str:
    try:
        return json.loads(path.read_bytes())["run_id"] or "another sweep"
    except (OSError, ValueError, KeyError):
        return "another sweep"


def _path(home: Path, name: str) -> Path:
    return Path(home) / "locks" / f"{name}.lock"
