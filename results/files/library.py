"""The run folders of a home and the published ones: read whole, deleted and brought back, published.

A deleted run moves aside, into `trash` of the home. A published one is copied into the repository, as data that every
checkout shows. No database is needed.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from results.files import journal
from results.files.durable import reason
from results.files.journal import PUBLISHED, JournalError, RunFolder, problem_words
from results.records import Measurement, Run


@dataclass(frozen=True)
class Deleted:
    """A run in the trash."""

    run_id: str
    when: str  # UTC, to the microsecond, as the folder around it is named
    path: Path


def folders() -> list[RunFolder]:
    """Return own, uploaded and published runs, newest first; an own run hides a published one of its name."""
    own = journal.run_folders(journal.home())
    names = {folder.run_id for folder in own}
    return own + [folder for folder in journal.published_folders() if folder.run_id not in names]


def find(run_id: str) -> RunFolder | None:
    """Return the folder of that run, if there is one, without reading any other."""
    if not run_id or run_id.startswith(".") or Path(run_id).name != run_id:
        return None
    places = (journal.home() / "runs" / run_id, journal.PUBLISHED / run_id)
    return next((RunFolder(place) for place in places if place.is_dir()), None)


def with_records(complain: Callable[[str], object] = lambda _: None) -> Iterator[tuple[RunFolder, Run]]:
    """Yield every run with a readable record; `complain` gets a sentence for each damaged record."""
    for folder in folders():
        if folder.run_path.is_file():
            try:
                yield folder, folder.run()
            except JournalError as error:
                complain(str(error))


def read_all(
    wanted: Iterable[RunFolder], complain: Callable[[str], object] = lambda _: None, metrics: Collection[str] = ()
) -> Iterator[tuple[Run, list[Measurement]]]:
    """Yield each of those runs as `read` gives it; `complain` gets a sentence for each run that cannot be read."""
    for folder in wanted:
        try:
            yield read(folder, complain, metrics)
        except JournalError as error:
            complain(str(error))


def read(
    folder: RunFolder, complain: Callable[[str], object] = lambda _: None, metrics: Collection[str] = ()
) -> tuple[Run, list[Measurement]]:
    """Read a run with its measurements, or of a compressed run those of `metrics`, each once.

    `complain` gets a sentence for lines that cannot be read.
    """
    measurements, _, problems = folder.read(metrics=metrics)
    for problem in problem_words(problems):
        complain(f"{folder.run_id}, {problem}")
    return folder.run(), list({m.key: m for m in reversed(measurements)}.values())[::-1]


def stamp(folder: RunFolder) -> tuple[str, tuple[int, int] | None, tuple[int, int] | None]:
    """Return a key for caches that changes whenever the run does."""
    return folder.run_id, _size_and_time(folder.run_path), _size_and_time(folder.numbers_path)


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
    """Return what lies in the trash, last deleted first."""
    found = sorted(_trash(home).glob("*/*"), reverse=True)
    return [Deleted(path.name, path.parent.name, path) for path in found if path.is_dir()]


def publish(folder: RunFolder, *, git_commit: str | None = None, target: Path = PUBLISHED) -> RunFolder:
    """Copy the run into results/published, marked as shipped, with its measurements as compressed columns.

    No number changes. Each measurement gets the id that follows from its fields, also if the run was renamed.
    `git_commit` fills a commit that the measuring machine could not know. The notes of a run that was cut off say so.
    Raises JournalError if the run is still running, is not local, names another commit or is already published.
    """
    run, condition = folder.run(), folder.condition()
    if condition == "running" or run.source != "local":
        raise JournalError(
            f"Run {run.run_id!r} is {condition} ({run.source}); only a local run that ended is published."
        )
    if git_commit and run.git_commit not in (None, git_commit):
        raise JournalError(f"Run {run.run_id!r} was measured at commit {run.git_commit}, not at {git_commit}.")
    shipped = RunFolder(target / run.run_id)
    if shipped.path.exists():
        raise JournalError(f"{shipped.path} exists; remove it first to publish run {run.run_id!r} again.")
    shipped.path.mkdir(parents=True)
    shipped.write_columns(folder.read()[0])
    if state := folder.read_state():
        shipped.write_state(state)
    done = f" after {state.done} of {state.total} cells" if state else ""
    notes = run.notes if condition == "finished" else f"Not a whole sweep: {condition}{done}."
    shipped.write_run(replace(run, source="shipped", git_commit=git_commit or run.git_commit, notes=notes))
    return shipped


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns


def _trash(home: Path) -> Path:
    return Path(home) / "trash"


def _move(source: Path, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
    except OSError as error:
        raise JournalError(f"{source} cannot be moved to {target}: {reason(error)}.") from error
    return target
