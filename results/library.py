"""The run folders of a home and the published ones, read whole. Standard library and journals only: no database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from results import journal
from results.journal import JournalError, RunFolder
from results.records import Measurement, Run


def folders() -> list[RunFolder]:
    """Own, uploaded and published runs, newest first; an own run hides a published one of its name."""
    own = journal.run_folders(journal.home())
    names = {folder.run_id for folder in own}
    return own + [folder for folder in journal.published_folders() if folder.run_id not in names]


def find(run_id: str) -> RunFolder | None:
    """The folder of that run, if there is one."""
    return next((folder for folder in folders() if folder.run_id == run_id), None)


def with_records(complain: Callable[[str], object] = lambda _: None) -> Iterator[tuple[RunFolder, Run]]:
    """Every run whose record can be read; `complain` is told of the others, but for folders that have none."""
    for folder in folders():
        if folder.run_path.is_file():
            try:
                yield folder, folder.run()
            except JournalError as error:
                complain(str(error))


def read_all(
    wanted: Iterable[RunFolder], complain: Callable[[str], object] = lambda _: None
) -> Iterator[tuple[Run, list[Measurement]]]:
    """Each of those runs as `read` gives it; `complain` is told of those that cannot be read."""
    for folder in wanted:
        try:
            yield read(folder, complain)
        except JournalError as error:
            complain(str(error))


def read(folder: RunFolder, complain: Callable[[str], object] = lambda _: None) -> tuple[Run, list[Measurement]]:
    """A run with its measurements, each once; `complain` is told of every line that cannot be read."""
    measurements, _, problems = folder.read()
    for problem in problems:
        complain(problem)
    return folder.run(), list({m.measurement_id: m for m in reversed(measurements)}.values())[::-1]


def stamp(folder: RunFolder) -> tuple[str, tuple[int, int] | None, tuple[int, int] | None]:
    """Changes whenever the run does; a key for caches."""
    return folder.run_id, *(_size_and_time(path) for path in (folder.run_path, folder.journal_path))


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns
