"""A run as files: one folder, one fsynced line a measurement. The truth; the database is derived from it.

Every line is appended by one writer at a time (an flock on the file itself) and holds one measurement. Readers take
complete lines only. The running process holds an flock on `run.lock`, which disappears with the process, however it
ended; a process id would not show that. Standard library only, so that a bare GPU node
can write a journal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results import records
from results.files import columns, durable
from results.paths import PUBLISHED, REPOSITORY
from results.records import Measurement, RecordError, Run

_MOST_REASONS = 10  # a damaged file is not told line by line


def problem_words(problems: Iterable[tuple[int, str]]) -> list[str]:
    """Say which lines of a journal cannot be read and why, a sentence a reason; line 0 is the run's record."""
    lines: dict[str, list[int]] = {}
    for line, reason in problems:
        lines.setdefault(reason, []).append(line)
    said = [f"{_lines_in_words(numbers)}{reason}" for reason, numbers in lines.items()]
    more = sum(map(len, list(lines.values())[_MOST_REASONS:]))
    return said[:_MOST_REASONS] + [f"{more} more lines cannot be read."] * bool(more)


def _lines_in_words(numbers: list[int]) -> str:
    if len(numbers) > 1:
        return f"{len(numbers)} lines, {numbers[0]} to {numbers[-1]}: "
    return f"line {numbers[0]}: " if numbers[0] else ""


def parse_line(line: bytes, run_id: str | None = None) -> Measurement:
    """Return the measurement of one journal line, of that run's folder. Raises RecordError saying what is wrong."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # neither UTF-8 nor JSON
        raise RecordError(f"Not a complete JSON line: {line[:40]!r}.") from None
    if not isinstance(record, dict):
        raise RecordError(f"Not a JSON object: {line[:40]!r}.")
    return _measurement_of(record, run_id)


def _measurement_of(record: dict[str, Any], run_id: str | None) -> Measurement:
    if missing := {"run_id", "implementation", "metric", "status"} - record.keys():
        raise RecordError(f"Missing fields {sorted(missing)}.")
    try:
        measurement = records.measurement_from_json(record)
    except OverflowError as error:
        raise RecordError(f"A number is out of range: {error}.") from error
    if run_id not in (None, measurement.run_id):
        raise RecordError(f"It is of run {measurement.run_id!r}, not of {run_id!r}, in whose folder it is.")
    return measurement


def line_of(measurement: Measurement) -> str:
    """Return the journal line of a measurement, newline included. Raises RecordError if a sample is not finite."""
    try:
        return json.dumps(records.measurement_to_json(measurement), allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError as error:  # NaN or infinity
        what = f"{measurement.metric} of {measurement.implementation}"
        raise RecordError(f"{what} has a sample that is not finite; give it a status instead.") from error


class JournalError(RuntimeError):
    """A run folder cannot be made, read or written; the message says why and what to do."""


class RunBusy(JournalError):
    """Another process holds the run's lock."""


def new_run_id(sweep: str) -> str:
    """Return a folder name for a run of that sweep: unique, and sorted by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{sweep}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class State:
    """How far a run is, as its process last said."""

    state: str  # running, finished, cancelled or failed
    done: int = 0  # cells that have a status
    total: int = 0  # cells planned
    current: str | None = None  # the cell being measured, in words
    pid: int | None = None
    started: str | None = None  # UTC, ISO 8601
    updated: str | None = None  # UTC, ISO 8601
    eta_s: float | None = None
    eta_bound: bool = False  # whether it takes at least that long, because something was never measured
    message: str | None = None
    costs: dict[str, float] | None = None  # seconds by kind of work, "total" and "wall" among them; see runner.overhead

    @property
    def lasted_s(self) -> float | None:
        """Return the seconds from its start, or the last time it was resumed, to what it last said."""
        if not self.started or not self.updated:
            return None
        begun, ended = map(datetime.fromisoformat, (self.started, self.updated))
        return (ended - begun).total_seconds()


def home() -> Path:
    """Return where runs are kept: $ATTNBENCH_HOME, or the repository's results folder."""
    return Path(os.environ.get("ATTNBENCH_HOME") or REPOSITORY / "results").expanduser().resolve()


def run_folders(home: Path) -> list[RunFolder]:
    """Return the runs of a home, newest first by their `created`."""
    return sorted(folders_in(Path(home) / "runs"), key=_age, reverse=True)


def published_folders() -> list[RunFolder]:
    """Return the runs that ship with the repository, newest first."""
    return sorted(folders_in(PUBLISHED), key=_age, reverse=True)


def folders_in(directory: Path) -> list[RunFolder]:
    """Return every run folder below a directory, in no order and without opening a file; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return [RunFolder(Path(e.path)) for e in entries if not e.name.startswith(".") and e.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


class RunFolder:
    """One run on disk: run.json, measurements.jsonl, state.json, log.txt, run.lock and the cancel flag.

    A run that ships has compressed columns (`results.files.columns`) instead of the journal measurements.jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.run_id = self.path.name
        self.run_path = self.path / "run.json"
        self.journal_path = self.path / "measurements.jsonl"
        self.columns_path = self.path / columns.NAME
        self.log_path = self.path / "log.txt"

    @classmethod
    def create(cls, home: Path, run: Run, measurements: Iterable[Measurement] = ()) -> RunFolder:
        """Make a new run, with all its measurements if they are known; it appears whole or not at all.

        Raises JournalError if the run exists or the folder cannot be written.
        """
        runs = Path(home) / "runs"
        folder = cls(runs / run.run_id)
        text = "".join(map(_line_of, measurements))
        try:
            runs.mkdir(parents=True, exist_ok=True)
            with durable.draft(runs) as draft:
                durable.write_synced(draft / "run.json", json.dumps(records.run_to_json(run), indent=1) + "\n")
                durable.write_synced(draft / "measurements.jsonl", text)
                durable.sync_directory(draft)
                draft.rename(folder.path)
            durable.sync_directory(runs)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise JournalError(f"Run {run.run_id!r} exists in {runs} already; choose another run_id.") from error
            with _refusal("create the run", folder.path, "start again"):
                raise
        return folder

    @classmethod
    def open(cls, home: Path, run_id: str) -> RunFolder:
        """Return the run of that id. Raises JournalError if there is none, or if its record is lost."""
        folder = cls(Path(home) / "runs" / run_id)
        if folder.run_id == run_id and folder.numbers_path.is_file() and not folder.run_path.is_file():
            raise JournalError(
                f"Run {run_id!r} has lost its record, {folder.run_path}; put a copy of it back. "
                f"Its numbers are in {folder.numbers_path}."
            )
        if folder.run_id != run_id or not folder.run_path.is_file():
            raise JournalError(
                f"There is no run {run_id!r} in {Path(home) / 'runs'}; `python -m results runs` lists them."
            )
        return folder

    @property
    def is_compressed(self) -> bool:
        """Return whether the measurements are compressed columns instead of a journal."""
        return self.columns_path.is_file() and not self.journal_path.exists()

    @property
    def numbers_path(self) -> Path:
        """Return the file of the measurements: the journal or the compressed columns."""
        return self.columns_path if self.is_compressed else self.journal_path

    def run(self) -> Run:
        """Read the run's record, run.json. Raises JournalError if it is missing, malformed or another run's."""
        try:
            run = records.run_from_json(json.loads(self.run_path.read_bytes()))
        except OSError as error:
            raise JournalError(f"{self.run_path} cannot be read: {error.strerror}.") from error
        except (ValueError, TypeError) as error:
            said = str(error).rstrip(".")
            raise JournalError(
                f"{self.run_path} is not a run's record: {said}. Put a copy of it back, or move the folder away."
            ) from error
        if run.run_id != self.run_id:
            raise JournalError(f"{self.run_path} is of run {run.run_id!r}; rename the folder to that.")
        return run

    def write_run(self, run: Run) -> None:
        """Replace run.json, by rename. Raises JournalError if it cannot be written."""
        self._replace(self.run_path, json.dumps(records.run_to_json(run), indent=1) + "\n")

    def append(self, *measurements: Measurement) -> None:
        """Add numbers; on return they are on disk. Raises JournalError, and then the journal is as it was."""
        if self.is_compressed:
            raise JournalError(f"Run {self.run_id!r} is finished and compressed; measure the rest in a new run.")
        line = "".join(map(_line_of, measurements)).encode()
        with _refusal("write", self.journal_path):
            fd = os.open(self.journal_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                durable.append_line(fd, line)
            finally:
                os.close(fd)

    def read(
        self, offset: int = 0, metrics: Collection[str] = ()
    ) -> tuple[list[Measurement], int, list[tuple[int, str]]]:
        """Return the measurements from a byte offset on, the offset to go on from, and what is wrong with which line.

        A last line without its newline is still being written, or was cut: it is left for the next time. Compressed
        columns have no offset, but only the rows of `metrics` are read. Raises JournalError if the file cannot be read.
        """
        if self.is_compressed:
            return self._read_columns(metrics)
        data, end = self.lines(offset)
        measurements, problems = [], []
        for number, line in enumerate(data.split(b"\n")[:-1]):
            try:
                if line.strip():
                    measurements.append(parse_line(line, self.run_id))
            except RecordError as error:
                before = self.lines(0)[0][:offset].count(b"\n")
                problems.append((before + number + 1, str(error)))
        return measurements, end, problems

    def write_columns(self, measurements: Iterable[Measurement]) -> None:
        """Write all measurements of a finished run as compressed columns. Raises JournalError if that fails."""
        try:
            with _refusal("write", self.columns_path):
                columns.write(self.columns_path, map(_line_of, measurements))
        except columns.ColumnsError as error:
            raise JournalError(f"Cannot write {self.columns_path}: {error}") from error

    def lines(self, offset: int = 0, limit: int = -1) -> tuple[bytes, int]:
        """Return the complete lines of the journal from a byte offset on, as they are, and the offset after them.

        With a limit about that many bytes at a time, but never less than one line.
        """
        try:
            with open(self.journal_path, "rb") as file:
                file.seek(offset)
                data = file.read(limit)
                end = data.rfind(b"\n") + 1
                if not end and len(data) == limit:
                    data += file.readline()
                    end = data.rfind(b"\n") + 1
        except FileNotFoundError:
            return b"", offset
        except OSError as error:
            raise JournalError(f"{self.journal_path} cannot be read: {error.strerror}.") from error
        return data[:end], offset + end

    def measurement_ids(self) -> set[str]:
        """Return what has been measured, so that a resumed run skips it."""
        return {measurement.measurement_id for measurement in self.read()[0]}

    def write_state(self, state: State) -> None:
        """Say how far the run is, by rename. Raises JournalError if it cannot be written."""
        self._replace(self.path / "state.json", json.dumps(asdict(state)) + "\n")

    def read_state(self) -> State | None:
        """Return what the run last said; None if it said nothing that can be read."""
        try:
            return State(**json.loads((self.path / "state.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def costs(self) -> dict[str, float]:
        """Return the seconds so far by kind of work; empty if the run did not say them."""
        state = self.read_state()
        return (state.costs if state else None) or {}

    def condition(self) -> str:
        """Return running, finished, cancelled, failed, or crashed: it says running but nobody holds its lock."""
        return self.look()[0]

    def look(self) -> tuple[str, State | None]:
        """Return the run's condition, and what it last said by then."""
        state, alive = self.read_state(), self.is_alive()
        if state is None:
            return "running" if alive else "crashed" if self._is_local() else "finished", None
        if state.state == "running" and not alive:
            state = self.read_state() or state  # it may have ended between the two looks
            return "crashed" if state.state == "running" else state.state, state
        return state.state, state

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run while it is being measured. Raises RunBusy if another process does."""
        with _refusal("lock the run", self.path):
            fd = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not durable.take_lock(fd, fcntl.LOCK_EX, seconds=0.5):  # longer than anyone's look whether it is alive
                raise RunBusy(f"Run {self.run_id!r} is being measured by another process; wait for it or cancel it.")
            yield
        finally:
            os.close(fd)

    def is_alive(self) -> bool:
        """Tell whether a process holds the run's lock."""
        return durable.is_locked(self.path / "run.lock")

    def request_cancel(self) -> None:
        """Ask the run to stop after the cell it is at."""
        with _refusal("ask for a cancel", self.path):
            (self.path / "cancel").touch()

    def cancel_requested(self) -> bool:
        """Tell whether somebody asked the run to stop."""
        return (self.path / "cancel").exists()

    def clear_cancel(self) -> None:
        """Forget an earlier wish to stop, when the run is resumed."""
        (self.path / "cancel").unlink(missing_ok=True)

    def _read_columns(self, metrics: Collection[str]) -> tuple[list[Measurement], int, list[tuple[int, str]]]:
        measurements, problems = [], []
        try:
            for number, record in enumerate(columns.read(self.columns_path, metrics), start=1):
                try:
                    measurements.append(_measurement_of(record, self.run_id))
                except RecordError as error:
                    problems.append((number, str(error)))
        except columns.ColumnsError as error:
            raise JournalError(f"{self.columns_path} cannot be read: {error}") from error
        return measurements, self.columns_path.stat().st_size, problems

    def _is_local(self) -> bool:
        try:
            return self.run().source == "local"
        except JournalError:
            return True

    def _replace(self, path: Path, text: str) -> None:
        with _refusal("write", path):
            durable.replace_file(path, text)


def _line_of(measurement: Measurement) -> str:
    try:
        return line_of(measurement)
    except RecordError as error:
        raise JournalError(str(error)) from error


def _age(folder: RunFolder) -> tuple[str, str]:
    try:
        return folder.run().created or "", folder.run_id
    except JournalError:
        return "", folder.run_id


@contextlib.contextmanager
def _refusal(what: str, path: Path, retry: str = "resume the run") -> Iterator[None]:
    """Turn an OSError of the block into a JournalError that says what cannot be done and what to do."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"Cannot {what} at {path}: {durable.reason(error, retry)}.") from error
