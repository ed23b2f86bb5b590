"""Which run folders the store has read and how far, and what of them is new."""

import contextlib
import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import duckdb

from results.files import columns, journal
from results.files.journal import JournalError, RunFolder, line_of
from results.store import summary
from results.store.ingest import Line, Problem, insert_columns, insert_lines, insert_run, sound_columns

_PIECE = 16 << 20  # bytes of journals parsed and inserted at a time
_NO_FILE = "0 0 0"


@dataclass(frozen=True)
class ReadUpTo:
    """How far a run folder has been read: one row of `ingested`."""

    run_id: str
    path: str
    byte_offset: int = 0
    line_count: int = 0
    journal_crc: int = 0  # checksum of the bytes before the offset
    record_crc: int = -1  # of run.json
    stamp: str = ""  # size, inode and time of the files when they were read


@dataclass(frozen=True)
class FolderChange:
    """A run folder that differs from what the store has of it."""

    folder: RunFolder
    entry: ReadUpTo  # where to go on reading
    restart: bool  # delete the rows that were read before
    record_changed: bool
    rows: str | None = None  # the query for compressed columns that need no closer look


class FolderSync:
    """What has been read, remembered between refreshes so that a look costs two stats a run."""

    refreshes: ClassVar[int] = 0  # of all stores of this process: between two of them no data change

    def __init__(self, home: Path) -> None:
        self._runs = Path(home) / "runs"
        self._version: tuple | None = None
        self._entries: dict[str, ReadUpTo] = {}

    def refresh(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """Take in every difference, all of it in one transaction; returns how many measurements are new."""
        try:
            return self._refresh(cursor)
        finally:
            FolderSync.refreshes += 1

    def _refresh(self, cursor: duckdb.DuckDBPyConnection) -> int:
        self._load(cursor)
        there = _look(journal.PUBLISHED) | _look(self._runs)
        gone = [run_id for run_id in self._entries if run_id not in there]
        new = [seen for run_id, seen in there.items() if not self._knows(run_id, *seen)]
        changes = [change for path, stamp in new if (change := self._examine(RunFolder(Path(path)), stamp))]
        changes = [_with_query(cursor, change) for change in changes]  # outside of the transaction, which an error ends
        if not changes and not gone:
            return 0
        self._version = None  # until it is committed, what is in memory may be ahead of the file
        cursor.begin()
        try:
            count = self._take_in(cursor, changes, gone)
            cursor.commit()
        except duckdb.Error:
            with contextlib.suppress(duckdb.Error):
                cursor.rollback()
            raise
        return count

    def _load(self, cursor: duckdb.DuckDBPyConnection) -> None:
        version = cursor.execute("SELECT store_id, data_version FROM store").fetchone()
        if version != self._version:
            rows = cursor.execute("SELECT * FROM ingested").fetchall()
            self._entries = {row[0]: ReadUpTo(*row) for row in rows}
            self._version = version

    def _knows(self, run_id: str, path: str, stamp: str) -> bool:
        known = self._entries.get(run_id)
        return known is not None and known.stamp == stamp and known.path == path

    def _examine(self, folder: RunFolder, stamp: str) -> FolderChange | None:
        """Return what there is to do about a folder that looks different; None if nothing."""
        path = str(folder.path)
        known = self._entries.get(folder.run_id)
        record_crc = _crc_of_record(folder)
        restart = bool(known) and _crc_of_journal(folder, known.byte_offset) != known.journal_crc
        entry = replace(known, path=path) if known and not restart else ReadUpTo(folder.run_id, path)
        if known and not restart and record_crc == known.record_crc and not _has_more(folder, entry.byte_offset):
            self._entries[folder.run_id] = replace(entry, stamp=stamp)
            return None
        entry = replace(entry, record_crc=record_crc, stamp=stamp)
        return FolderChange(folder, entry, restart, known is None or record_crc != known.record_crc)

    def _take_in(self, cursor: duckdb.DuckDBPyConnection, changes: list[FolderChange], gone: list[str]) -> int:
        """Bring the tables to what the folders say, within the caller's transaction."""
        changed = gone + [change.entry.run_id for change in changes]
        forget = gone + [change.entry.run_id for change in changes if change.restart]
        troubles = set(
            cursor.execute("SELECT * FROM problems WHERE line = 0 AND run_id = ANY(?)", [changed]).fetchall()
        )
        for table in ("runs", "ingested"):
            cursor.execute(f"DELETE FROM {table} WHERE run_id = ANY(?)", [changed])
        cursor.execute("DELETE FROM problems WHERE line = 0 AND run_id = ANY(?)", [changed])
        if forget:
            cursor.execute("DELETE FROM measurements WHERE run_id = ANY(?)", [forget])
            cursor.execute("DELETE FROM problems WHERE run_id = ANY(?)", [forget])
        reading = _Intake(cursor)
        entries = [reading.read(change) for change in changes]
        reading.flush()
        if reading.problems:
            cursor.executemany("INSERT INTO problems VALUES (?, ?, ?)", reading.problems)
        if entries:
            rows = [list(vars(entry).values()) for entry in entries]
            cursor.executemany("INSERT INTO ingested VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        records = [change for change in changes if change.record_changed]
        altered = {*forget, *(change.entry.run_id for change in records), *(reading.runs if reading.new else ())}
        if altered:
            shrinking = {*forget, *(change.entry.run_id for change in records if change.entry.run_id in self._entries)}
            summary.bring_up_to_date(cursor, sorted(altered), shrinking=shrinking)
        if altered or troubles != set(reading.problems):
            cursor.execute("UPDATE store SET data_version = data_version + 1")
        return reading.new


class _Intake:
    """Journals on their way into the table, gathered until a piece is worth a query."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.new = 0
        self.runs: set[str] = set()  # runs with new lines
        self.problems: list[Problem] = []
        self._cursor = cursor
        self._lines: list[Line] = []
        self._size = 0

    def read(self, change: FolderChange) -> ReadUpTo:
        """Take a run's record and its new lines; returns how far that is."""
        entry, data = change.entry, b""
        try:
            insert_run(self._cursor, change.folder.run())
            if change.folder.is_compressed:
                return self._read_columns(change)
            while True:
                data, offset = change.folder.lines(entry.byte_offset, _PIECE)
                if not data:
                    return entry
                count = entry.line_count + self._gather(entry, data)
                crc = zlib.crc32(data, entry.journal_crc)
                entry = replace(entry, byte_offset=offset, line_count=count, journal_crc=crc)
        except JournalError as error:
            self.problems.append((entry.run_id, 0, str(error)))
            return entry

    def _read_columns(self, change: FolderChange) -> ReadUpTo:
        folder, run_id = change.folder, change.entry.run_id
        self.runs.add(run_id)
        if change.rows:
            self.new += insert_columns(self._cursor, change.rows)
        else:
            measurements, _, problems = folder.read()
            self.problems += [(run_id, number, reason) for number, reason in problems]
            lines = (line_of(measurement).rstrip().encode() for measurement in measurements)
            self._lines += [Line(run_id, number, line) for number, line in enumerate(lines, start=1)]
            self.flush()
        data = folder.columns_path.read_bytes()
        return replace(change.entry, byte_offset=len(data), journal_crc=zlib.crc32(data))

    def flush(self) -> None:
        """Insert what was gathered."""
        if self._lines:
            new, problems = insert_lines(self._cursor, self._lines)
            self.new += new
            self.problems += problems
        self._lines, self._size = [], 0

    def _gather(self, entry: ReadUpTo, data: bytes) -> int:
        lines = data.split(b"\n")[:-1]
        numbered = enumerate(lines, entry.line_count + 1)
        self._lines += [Line(entry.run_id, number, line) for number, line in numbered if line and not line.isspace()]
        self.runs.add(entry.run_id)
        self._size += len(data)
        if self._size >= _PIECE:
            self.flush()
        return len(lines)


def _with_query(cursor: duckdb.DuckDBPyConnection, change: FolderChange) -> FolderChange:
    return replace(change, rows=sound_columns(cursor, change.folder)) if change.folder.is_compressed else change


def _look(directory: Path) -> dict[str, tuple[str, str]]:
    """Return every run folder's path and stamp: size, inode and time of both files. Each rerun of a page looks."""
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                stamp = f"{_stamp(f'{entry.path}/run.json')}/{_stamp_of_numbers(entry.path)}"
                if stamp != f"{_NO_FILE}/{_NO_FILE}":
                    found[entry.name] = (entry.path, stamp)
    return found


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return _NO_FILE
    return f"{found.st_size} {found.st_ino} {found.st_mtime_ns}"


def _stamp_of_numbers(folder: str) -> str:
    stamp = _stamp(f"{folder}/measurements.jsonl")
    return stamp if stamp != _NO_FILE else _stamp(f"{folder}/{columns.NAME}")


def _crc_of_record(folder: RunFolder) -> int:
    try:
        return zlib.crc32(folder.run_path.read_bytes())
    except OSError:
        return -1


def _crc_of_journal(folder: RunFolder, length: int) -> int:
    """Return the checksum of the first bytes of the journal; -1 if it has not that many."""
    crc = 0
    try:
        with open(folder.numbers_path, "rb") as file:
            while length:
                data = file.read(min(length, _PIECE))
                if not data:
                    return -1
                crc, length = zlib.crc32(data, crc), length - len(data)
    except OSError:
        return crc if not length else -1
    return crc


def _has_more(folder: RunFolder, offset: int) -> bool:
    try:
        return folder.lines(offset, 1)[0] != b""
    except JournalError:
        return True
