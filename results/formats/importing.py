"""Writes an understood file as run folders: all of its runs or none, and each only once.

A run whose id is already stored is not changed. A file without run ids becomes `upload-<sha256>`, so the same bytes are
the same run. Exports of attnbench and run folders keep their ids, so a run that was measured here, ships with the
repository or was uploaded before in another file is not duplicated.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from results.files import durable, library
from results.files.journal import PUBLISHED, JournalError, RunFolder
from results.files.library import Deleted
from results.formats.errors import AlreadyHere, CellError, UploadError, wall
from results.formats.upload import Understanding
from results.formats.values import words
from results.grouping import grouped
from results.records import Measurement, Run

LEAVE, NEW, REPLACE = "leave", "new", "replace"  # ways to import a run whose id exists with other contents
_SUFFIX = re.compile(r"(\.tar)?\.[A-Za-z0-9]{1,8}$")


@dataclass(frozen=True)
class RunStanding:
    """A run of a file compared with the stored run of the same id. An import adds a new run whole."""

    run_id: str
    numbers: int  # in the file
    here: bool
    known: int = 0  # how many of these are stored
    ships: bool = False  # part of the repository, so it cannot be deleted
    gpus: tuple[str | None, str | None] = (None, None)  # the GPU in the file, and the GPU of the stored run

    @property
    def differs(self) -> bool:
        """Return whether the stored run differs from the file's run."""
        return self.here and (self.known < self.numbers or self.gpus[0] != self.gpus[1])


@dataclass(frozen=True)
class Arrival:
    """The runs that an import wrote, so that it can be undone."""

    run_ids: tuple[str, ...]
    replaced: tuple[Deleted, ...] = ()


def standing(home: Path, understanding: Understanding) -> list[RunStanding]:
    """Return each run of the file compared with the stored run of the same id."""
    numbers = grouped(understanding.measurements, attrgetter("run_id"))
    found = []
    for run in understanding.runs:
        folder = _place(Path(home), run.run_id)
        known = RunFolder(folder).measurement_ids() if folder else set()
        own = [measurement.measurement_id for measurement in numbers.get(run.run_id, ())]
        ships = folder is not None and folder.parent == PUBLISHED
        gpus = (run.gpu_name, _gpu_here(folder) if folder and run.gpu_name else run.gpu_name)
        shared = sum(name in known for name in own)
        found.append(RunStanding(run.run_id, len(own), folder is not None, shared, ships, gpus))
    return found


def left_alone(standings: Sequence[RunStanding]) -> list[str]:
    """Return sentences about the runs that an import would not add, with the reasons."""
    whole = [run for run in standings if run.here and not run.differs]
    sentences = []
    if whole:
        which = f"run {whole[0].run_id}" if len(whole) == 1 else f"{len(whole)} runs"
        sentences.append(f"All {sum(run.numbers for run in whole):,} numbers of {which} are here already.")
    return sentences + [difference(run) for run in standings if run.differs]


def difference(run: RunStanding) -> str:
    """Describe how the stored run differs from the file's run of the same id."""
    machine = f", of GPU {run.gpus[1]} (the file says {run.gpus[0]})" if run.gpus[0] != run.gpus[1] else ""
    choice = "Import it as a new run" + (", or leave it." if run.ships else ", replace what is here, or leave it.")
    return f"Run {run.run_id} is here with {run.known:,} of the file's {run.numbers:,} numbers{machine}. {choice}"


def import_for_undo(
    home: Path,
    understanding: Understanding,
    *,
    gpu_name: str | None = None,
    skip_rejected: bool = False,
    existing: str = LEAVE,
) -> Arrival:
    """Write the runs that are not stored yet, with the original file; return what `take_back` needs.

    `gpu_name` is for runs that name no GPU. `existing` applies to a run whose id is stored with other contents: LEAVE
    it, import the file's run as NEW under a free id, or REPLACE the stored run, which moves into the trash. Raises
    UploadError, with nothing written, if a line was rejected and `skip_rejected` is False, or if the folder cannot be
    written.
    """
    if understanding.rejected and not skip_rejected:
        first = understanding.rejected[0]
        raise UploadError(
            f"{len(understanding.rejected):,} cells or lines are rejected, the first in line {first.line}"
            f"{f', column {first.column}' if first.column else ''}: {first.value!r} {first.reason}. "
            "Correct them, or import without them."
        )
    if not understanding.measurements:
        raise UploadError("No line of the file can be taken.")
    with wall(understanding.upload.filename, "imported"):
        differing = {run.run_id for run in standing(home, understanding) if run.differs} if existing != LEAVE else set()
        by_run = grouped(understanding.measurements, attrgetter("run_id"))
        fresh = [
            (_completed(run, understanding, gpu_name), by_run[run.run_id])
            for run in understanding.runs
            if run.run_id in by_run and (run.run_id in differing or not _place(Path(home), run.run_id))
        ]
        if existing == NEW:
            fresh = [_renamed(Path(home), *each) if each[0].run_id in differing else each for each in fresh]
        replaced = differing if existing == REPLACE else set()
        return _write(Path(home), fresh, understanding, replaced) if fresh else Arrival(())


def take_back(home: Path, arrived: Arrival) -> None:
    """Move the runs of an import into the trash, and bring back what they replaced. Raises JournalError."""
    for run_id in arrived.run_ids:
        library.delete(home, run_id)
    for deleted in arrived.replaced:
        library.restore(home, deleted)


def _gpu_here(folder: Path) -> str | None:
    try:
        return RunFolder(folder).run().gpu_name
    except JournalError:
        return None


def _renamed(home: Path, run: Run, measurements: list[Measurement]) -> tuple[Run, list[Measurement]]:
    """Return the run under the next free id."""
    number = 2
    while _place(home, f"{run.run_id[:110]}-{number}"):
        number += 1
    name = f"{run.run_id[:110]}-{number}"
    return replace(run, run_id=name), [replace(measurement, run_id=name) for measurement in measurements]


def _place(home: Path, run_id: str) -> Path | None:
    """Return where a run of that id is stored; None if it is not."""
    return next((place for place in (home / "runs" / run_id, PUBLISHED / run_id) if place.exists()), None)


def _completed(run: Run, understanding: Understanding, gpu_name: str | None) -> Run:
    """Return the run with the GPU that the user named and, in its notes, how the file was read."""
    upload = understanding.upload
    read = [f"Uploaded as {upload.filename[:200]!r}, sha256 {upload.sha256}.", *understanding.assumptions]
    read += [f"Left out: {what}" for what in understanding.left_out]
    if understanding.rejected:
        read.append(f"{len(understanding.rejected):,} rejected cells or lines are left out.")
    if run.gpu_name is None and gpu_name:
        run = replace(run, gpu_name=_named(gpu_name.strip()))
        read.append("The GPU was named at the upload; the file does not say it.")
    keeps_its_own = not run.run_id.startswith(upload.run_id)
    return run if keeps_its_own else replace(run, notes=" ".join(read))


def _named(gpu_name: str) -> str:
    try:
        return words(gpu_name)
    except CellError as error:
        raise UploadError(f"The GPU name {gpu_name[:80]!r} {error}.") from error


def _write(
    home: Path, fresh: Sequence[tuple[Run, list[Measurement]]], understanding: Understanding, replaced: Set[str]
) -> Arrival:
    """Write all folders in a hidden draft, then rename each; what was moved is undone if a later one fails."""
    runs = home / "runs"
    moved: list[Path] = []
    aside: list[Deleted] = []
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with durable.draft(runs) as draft:
            drafted = [RunFolder.create(draft, run, measurements).path for run, measurements in fresh]
            for folder in drafted:
                _keep_original(folder, understanding, drafted[0])
            aside = [library.delete(home, run_id) for run_id in replaced]
            for folder in drafted:
                _rename(folder, runs / folder.name, understanding)
                moved.append(runs / folder.name)
    except (OSError, JournalError, AlreadyHere) as error:
        for folder in moved:
            shutil.rmtree(folder, ignore_errors=True)
        for deleted in aside:
            with contextlib.suppress(JournalError):
                library.restore(home, deleted)
        if isinstance(error, AlreadyHere):
            raise
        cause = error if isinstance(error, OSError) else error.__cause__
        known = cause if isinstance(cause, OSError) else None
        reason = durable.reason(known, "import it again") if known else str(error).rstrip(".")
        raise UploadError(f"The upload cannot be written to {runs}: {reason}.") from error
    return Arrival(tuple(folder.name for folder in moved), tuple(aside))


def _rename(draft: Path, folder: Path, understanding: Understanding) -> None:
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        name = understanding.upload.filename
        raise AlreadyHere(f"{name} is here already: another import brought it at the same moment.") from error


def _keep_original(folder: Path, understanding: Understanding, first: Path) -> None:
    upload = understanding.upload
    match = _SUFFIX.search(upload.filename)
    name = f"original{match[0].lower() if match else '.bin'}"
    if folder != first:
        with contextlib.suppress(OSError):  # not every file system can link
            os.link(first / name, folder / name)
            return
    durable.write_synced(folder / name, upload.data)
