"""What was understood, as run folders: all of a file's runs or none, and each only once.

A run that is here already, by its id, is left alone. A file without run ids becomes `upload-<sha256>`, so the same
bytes are the same run; own exports and run folders keep their ids, so a run that was measured here, shipped, or
uploaded before in another file is not doubled.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.files.journal import PUBLISHED, JournalError, RunFolder
from results.formats.errors import CellError, UploadError
from results.formats.upload import Understanding
from results.formats.values import words
from results.records import Measurement, Run

_DELETE_FIRST = "delete it first to take the file's."
_SUFFIX = re.compile(r"(\.tar)?\.[A-Za-z0-9]{1,8}$")


@dataclass(frozen=True)
class Standing:
    """A run of a file beside what is here: an import adds it whole, or leaves it alone if it is here in any part."""

    run_id: str
    numbers: int  # that the file has of it
    here: bool
    known: int = 0  # of those, how many are here
    ships: bool = False  # with the repository, so that nobody can delete it


def standing(home: Path, understanding: Understanding) -> list[Standing]:
    """Return each run of the file, beside what is here of it."""
    ids: dict[str, list[str]] = defaultdict(list)
    for measurement in understanding.measurements:
        ids[measurement.run_id].append(measurement.measurement_id)
    found = []
    for run in understanding.runs:
        folder = next((place for place in _places(Path(home), run.run_id) if place.exists()), None)
        known = RunFolder(folder).measurement_ids() if folder else set()
        own = ids[run.run_id]
        ships = folder is not None and folder.parent == PUBLISHED
        found.append(Standing(run.run_id, len(own), folder is not None, sum(name in known for name in own), ships))
    return found


def left_alone(standings: Sequence[Standing]) -> list[str]:
    """Return what an import would not add, and why, in sentences."""
    here = [run for run in standings if run.here]
    whole = [run for run in here if run.known == run.numbers]
    sentences = []
    if whole:
        which = f"run {whole[0].run_id}" if len(whole) == 1 else f"{len(whole)} runs"
        sentences.append(f"All {sum(run.numbers for run in whole):,} numbers of {which} are here already.")
    sentences += [
        f"Run {run.run_id} is here with {run.known:,} of the file's {run.numbers:,} numbers and is left alone; "
        + ("it ships with the project: give the file's another name." if run.ships else _DELETE_FIRST)
        for run in here
        if run.known < run.numbers
    ]
    return sentences


def import_understanding(
    home: Path, understanding: Understanding, *, gpu_name: str | None = None, skip_rejected: bool = False
) -> list[str]:
    """Write the runs that are not here yet, with the original file beside; returns their ids, so none the second time.

    `gpu_name` is for runs that name no GPU. Raises UploadError, with nothing written, if a line was rejected and
    `skip_rejected` does not say to go on without it, or if the folder cannot be written.
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
    by_run: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in understanding.measurements:
        by_run[measurement.run_id].append(measurement)
    fresh = [
        _completed(run, understanding, gpu_name)
        for run in understanding.runs
        if by_run[run.run_id] and not _is_here(Path(home), run.run_id)
    ]
    if fresh:
        _write(Path(home) / "runs", fresh, by_run, understanding)
    return [run.run_id for run in fresh]


def _is_here(home: Path, run_id: str) -> bool:
    return any(place.exists() for place in _places(home, run_id))


def _places(home: Path, run_id: str) -> tuple[Path, Path]:
    return home / "runs" / run_id, PUBLISHED / run_id


def _completed(run: Run, understanding: Understanding, gpu_name: str | None) -> Run:
    """Return the run with the GPU that somebody named and, in its notes, how the file was read."""
    upload = understanding.upload
    read = [f"Uploaded as {upload.filename[:200]!r}, sha256 {upload.sha256}.", *understanding.assumptions]
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
    runs: Path, fresh: Sequence[Run], by_run: dict[str, list[Measurement]], understanding: Understanding
) -> None:
    """Write all folders in a hidden draft, then rename each; what was renamed goes if a later one fails."""
    draft: Path | None = None
    moved: list[Path] = []
    try:
        runs.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".upload-", dir=runs))
        drafted = [RunFolder.create(draft, run, by_run[run.run_id]).path for run in fresh]
        for folder in drafted:
            _keep_original(folder, understanding, drafted[0])
        for folder in drafted:
            folder.rename(runs / folder.name)
            moved.append(runs / folder.name)
    except (OSError, JournalError) as error:
        for folder in moved:
            shutil.rmtree(folder, ignore_errors=True)
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or str(error).rstrip(".")
        raise UploadError(f"The upload cannot be written to {runs}: {reason}.") from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def _keep_original(folder: Path, understanding: Understanding, first: Path) -> None:
    upload = understanding.upload
    match = _SUFFIX.search(upload.filename)
    name = f"original{match[0].lower() if match else '.bin'}"
    if folder != first:
        with contextlib.suppress(OSError):  # not every file system can link
            os.link(first / name, folder / name)
            return
    with open(folder / name, "wb") as file:
        file.write(upload.data)
        file.flush()
        os.fsync(file.fileno())
