"""Run folders into the tables of the store: which are new and how far they are read, and each line once.

`results.records` judges each line. It is written anew for the table, and one that is no measurement is a problem.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import duckdb
import pandas as pd

from results.files import columns, journal
from results.files.columns import COLUMNS, SCHEMA, SQL_TYPES
from results.files.journal import JournalError, RunFolder, line_of, parse_line
from results.metrics import ABOVE_ZERO, METRICS, SIGNED
from results.records import CASE_SCHEMA, RUN_SCHEMA, Measurement, RecordError, Run, Status
from results.schema import KINDS, LARGEST_WHOLE, LISTS, magnitude_fits
from results.sql import SqlFile
from results.store import summary

_SQL = SqlFile(__file__)

Problem = tuple[str, int, str]  # run_id, line (0 is run.json), reason


class Line(NamedTuple):
    """One complete line of a run's journal."""

    run_id: str
    number: int  # from 1
    content: bytes


RUN_COLUMNS = {name: SQL_TYPES[rules.kind] for name, rules in RUN_SCHEMA.items()}
RUN_OBJECTS = tuple(name for name, rules in RUN_SCHEMA.items() if rules.kind == "object")  # stored as JSON

_HOLDS: dict[str, Callable[[Any], bool]] = {  # by kind of a field, whether the table holds a value
    "text": lambda value: isinstance(value, str) and value.encode(errors="replace").decode() == value,
    "status": lambda value: True,
    "whole": lambda value: type(value) is int and 0 <= value <= LARGEST_WHOLE,
    "number": lambda value: type(value) in (int, float) and magnitude_fits(value),
    "boolean": lambda value: isinstance(value, bool),
}
_HOLDS |= {kind: partial(lambda holds, value: all(map(holds, value)), _HOLDS[one]) for kind, one in LISTS.items()}

_STRUCTURE = json.dumps({name: [kind[:-2]] if kind.endswith("[]") else kind for name, kind in COLUMNS.items()})
_AS_TIME = "make_timestamp(epoch_us(try_cast({} AS TIMESTAMPTZ)))"  # an offset is honoured, none means UTC
_AS_STORED = {"time": _AS_TIME.format("time"), "round_sizes": "coalesce(round_sizes, [])"}
_INSERT = _SQL("insert", columns=", ".join(COLUMNS), stored=", ".join(_AS_STORED.get(name, name) for name in COLUMNS))


# What the rules of a measurement's numbers can refuse, see results.records.
_LEAST = "least(m.value, m.mean, m.p20, m.p80, m.ci_low, m.ci_high, list_min(m.samples))"
_NOT_BELOW_0 = [name for name, metric in METRICS.items() if metric.range != SIGNED]
_NOT_0 = [name for name, metric in METRICS.items() if metric.range == ABOVE_ZERO]
_BREAKS_A_RULE = _SQL("breaks_a_rule", least=_LEAST, not_below_0=_NOT_BELOW_0, not_0=_NOT_0)
_CHOICES = {name: rules.choices for name, rules in SCHEMA.items() if rules.choices} | {
    "status": tuple(map(str, Status))
}
_NO_CHOICE = " OR ".join(f"NOT list_contains({[*choices]}, m.{name})" for name, choices in _CHOICES.items())
_ODD_COLUMNS = _SQL("odd_columns", breaks_a_rule=_BREAKS_A_RULE, no_choice=_NO_CHOICE)
_KNOWN = "SELECT measurement_id FROM measurements WHERE measurement_id IN (SELECT measurement_id FROM incoming)"


def insert_lines(cursor: duckdb.DuckDBPyConnection, lines: list[Line]) -> tuple[int, list[Problem]]:
    """Insert what is new among these lines; returns how many rows that is and what is wrong with which line."""
    new: dict[str, str] = {}
    problems = []
    for run_id, number, content in lines:
        try:
            content.decode()
            text = stored(parse_line(content, run_id))
            new.setdefault(text[-22:-2], text)  # the id is last in a line
        except RecordError as error:
            problems.append((run_id, number, str(error)))
        except UnicodeDecodeError:
            problems.append((run_id, number, "It is not UTF-8."))
    _register(cursor, measurement_id=list(new))
    for (known,) in cursor.execute(_KNOWN).fetchall():
        del new[known]
    if new:
        _register(cursor, line=list(new.values()))
        cursor.execute(f"{_INSERT} (SELECT unnest(json_transform(line, '{_STRUCTURE}')) FROM incoming)")
    return len(new), problems


def stored(measurement: Measurement) -> str:
    """Return a line as our own writer writes it. Raises RecordError if the table cannot hold a field."""
    for name, rules in SCHEMA.items():
        value = getattr(measurement.case if name in CASE_SCHEMA else measurement, name)
        if not (rules.nullable if value is None else _HOLDS[rules.kind](value)):
            raise RecordError(f"{name} is {value!r}; it must be {KINDS[rules.kind]['words']}.")
    return line_of(measurement).rstrip("\n")


def sound_columns(cursor: duckdb.DuckDBPyConnection, folder: RunFolder) -> str | None:
    """Return the query for the rows of a shipped run's columns; None if `results.records` has to judge each row.

    Files of other places than the repository are not trusted: their rows take the way of journal lines.
    """
    if folder.path.parent != journal.PUBLISHED or not folder.is_compressed:
        return None
    path = folder.columns_path
    try:
        fields = columns.selected(cursor, path)
        *_, odd = cursor.execute(_ODD_COLUMNS, [folder.run_id, str(path)]).fetchone()
    except (duckdb.Error, columns.ColumnsError):
        return None
    return f"SELECT {fields} FROM read_parquet({columns.quoted(path)})" if not odd else None


def insert_run(cursor: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Insert a run's record, whose fields `run_from_json` checked."""
    row: dict[str, Any] = {"created_text": run.created}
    for name in RUN_COLUMNS:
        value = getattr(run, name)
        row[name] = json.dumps(value) if name in RUN_OBJECTS and value is not None else value
    places = [_AS_TIME.format("?") if name == "created" else "?" for name in row]
    cursor.execute(f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join(places)})", list(row.values()))


def _register(cursor: duckdb.DuckDBPyConnection, **columns: list[str]) -> None:
    """Offer the columns to the next query as the table `incoming`."""
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    cursor.register("incoming", frame.assign(position=range(len(frame))))


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
        known = {run_id: (entry.path, entry.stamp) for run_id, entry in self._entries.items()}
        new = [seen for run_id, seen in there.items() if known.get(run_id) != seen]
        # Folders are examined outside of the transaction, which an error ends.
        changes = [change for path, stamp in new if (change := self._examine(cursor, RunFolder(Path(path)), stamp))]
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

    def _examine(self, cursor: duckdb.DuckDBPyConnection, folder: RunFolder, stamp: str) -> FolderChange | None:
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
        record_changed = known is None or record_crc != known.record_crc
        return FolderChange(folder, entry, restart, record_changed, sound_columns(cursor, folder))

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
            self.new += self._cursor.execute(f"{_INSERT} ({change.rows})").fetchone()[0]
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
