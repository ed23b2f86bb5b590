"""Deleting a run so that it can be brought back: its folder moves aside, into `trash` of the home."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from results.durable import reason
from results.journal import JournalError, RunFolder


@dataclass(frozen=True)
class Deleted:
    """A run in the trash."""

    run_id: str
    when: str  # UTC, to the microsecond, as the folder around it is named
    path: Path


def delete(home: Path, run_id: str) -> Deleted:
    """Move a run of one's own or an upload into the trash.

    Raises JournalError if there is none of that id, if it is being measured, or if it cannot be moved; RunBusy too.
    """
    folder = RunFolder.open(home, run_id)
    when = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    with folder.lock():
        return Deleted(run_id, when, _move(folder.path, _trash(home) / when / run_id))


def restore(home: Path, deleted: Deleted) -> RunFolder:
    """Bring a run back. Raises JournalError if another run has its name by now, or if it is gone."""
    target = Path(home) / "runs" / deleted.run_id
    if target.exists():
        raise JournalError(f"There is a run {deleted.run_id!r} again; delete that first to bring this one back.")
    source = _trash(home) / deleted.when / deleted.run_id
    if not source.is_dir():
        raise JournalError(f"{source} is gone; run {deleted.run_id!r} cannot be brought back.")
    _move(source, target)
    source.parent.rmdir()
    return RunFolder(target)


def deleted_runs(home: Path) -> list[Deleted]:
    """What lies in the trash, last deleted first."""
    found = sorted(_trash(home).glob("*/*"), reverse=True)
    return [Deleted(path.name, path.parent.name, path) for path in found if path.is_dir()]


def _trash(home: Path) -> Path:
    return Path(home) / "trash"


def _move(source: Path, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
    except OSError as error:
        raise JournalError(f"{source} cannot be moved to {target}: {reason(error)}.") from error
    return target
