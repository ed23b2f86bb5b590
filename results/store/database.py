"""Every result, ready for SQL. Derived from the run folders at any time, so losing it loses nothing.

One process owns `store.duckdb`. A process that cannot open it (in use, read-only, disk full) builds the same tables in
memory and shows a notice. A file that is damaged when it is opened is renamed and recreated. The file is
never opened by other means than DuckDB: closing any other handle on it would drop DuckDB's own lock.
"""

import fcntl
import os
import random
import re
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pandas as pd

from results.files import columns, journal
from results.files.durable import remove_abandoned_drafts, take_lock
from results.store import summary
from results.store.ingest import FolderSync, Problem

SCHEMA = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
LAYOUT = f"{zlib.crc32((SCHEMA + summary.LAYOUT).encode()):08x}"  # a file with another layout is recreated

THREADS = 2  # of a store: leave the other cores to a running benchmark
_WAIT_S = 2.0  # for another process to let go of the file
_FILE_TROUBLE = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.SerializationException,
    duckdb.TransactionException,  # a commit that found the disk full
)
_KEPT = 64  # answers
_PIECE = 2000  # rows of an answer fetched at a time
_DAMAGE = re.compile(r"checksum|not a valid DuckDB|Could not read enough bytes|replaying WAL", re.IGNORECASE)
_SAME_RESULTS = "This is a copy in memory of the same results"
Answer = TypeVar("Answer")
_locks: dict[Path | None, threading.RLock] = {}
_open: dict[Path, int] = {}


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message says why and what to do."""


class Store:
    """The results of a home and the published ones, behind SQL. Safe to share between threads."""

    def __init__(
        self,
        home: Path,
        connection: duckdb.DuckDBPyConnection,
        path: Path | None,
        notice: str | None,
        damaged: bool = False,
    ) -> None:
        self.home = home
        self.path = path  # None: in memory
        self.notice = notice  # a sentence for the user about the origin of the results
        self.damaged = damaged  # the file cannot be read, hence the copy in memory
        self.mended: str | None = None  # a sentence about a damaged file that was replaced on opening
        self._connection = connection
        self._closed = False
        self._folder_sync = FolderSync(home)
        self._lock = _locks.setdefault(path, threading.RLock()) if path else threading.RLock()
        self._version: tuple[int, str] | None = None  # after how many refreshes, and the text
        self._once = lru_cache(_KEPT)(lambda version, work, args: work(self, *args))

    def query(self, sql: str, params: Sequence[Any] = ()) -> pd.DataFrame:
        """Return the rows of a query as a table."""
        return self._on_cursor(lambda cursor: cursor.execute(sql, list(params)).df())

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple]:
        """Return the rows of a query as plain tuples: None stays None, whole numbers stay whole."""
        return self._on_cursor(lambda cursor: cursor.execute(sql, list(params)).fetchall())

    def kept(self, sql: str, params: Sequence[Any] = ()) -> tuple[tuple, ...]:
        """Return the rows of a query, remembered until the data change: for what many views ask again and again."""
        return self.once(_rows, sql, tuple(params))

    def once(self, work: Callable[..., Answer], *args: Hashable) -> Answer:
        """Return `work(store, *args)`, remembered until the data change; nobody may change the answer."""
        return self._once(self.version(), work, args)

    def stream(self, sql: str, params: Sequence[Any] = ()) -> Iterator[tuple]:
        """Yield the rows of a query piece by piece, for large answers. Raises StoreError if the file breaks."""
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(sql, list(params))
                while rows := cursor.fetchmany(_PIECE):
                    yield from rows
        except duckdb.Error as error:
            if not _of_the_file(error):
                raise
            raise StoreError(f"{_first_line(error)}; run `python -m results rebuild` and try again.") from error

    def refresh(self) -> int:
        """Take in what the run folders have that the store has not; returns how many measurements are new."""
        with self._lock:
            return self._on_cursor(lambda cursor: self._folder_sync.refresh(cursor))

    def version(self) -> str:
        """Return a text that changes exactly when the data changed; a key for caches."""
        refreshes = FolderSync.refreshes
        if self._version is None or self._version[0] != refreshes:
            self._version = refreshes, ":".join(map(str, self.rows("SELECT store_id, data_version FROM store")[0]))
        return self._version[1]

    @property
    def problems(self) -> list[Problem]:
        """Return the lines that could not be read: run, line (0 is the run's record), reason."""
        return self.rows("SELECT run_id, line, reason FROM problems ORDER BY run_id, line, reason")

    def close(self) -> None:
        """Let go of the file, so that another process may have it."""
        with self._lock:
            self._closed = True
            self._release(self._connection)

    def _on_cursor(self, work: Any) -> Any:
        connection = self._connection
        if self._closed:
            raise StoreError("The store is closed; open it again with open_store.")
        try:
            with closing(connection.cursor()) as cursor:
                return work(cursor)
        except duckdb.Error as error:
            current = connection is self._connection  # otherwise another thread has left the file already
            if current and not _of_the_file(error):
                raise
            if current and self.path is None:
                raise StoreError(f"The results cannot be read: {_first_line(error)}.") from error
            with self._lock:
                if connection is self._connection:
                    self.damaged = _is_damage(self.path, error)
                    self._go_on_in_memory(_notice(self.path, error))
            return self._on_cursor(work)

    def _go_on_in_memory(self, notice: str) -> None:
        """Leave the file for a copy in memory; readers that are under way end on the old connection."""
        connection, folder_sync = _connect(None), FolderSync(self.home)
        with closing(connection.cursor()) as cursor:
            folder_sync.refresh(cursor)
        left, self._connection = self._connection, connection
        self.notice, self._folder_sync, self._version = notice, folder_sync, None
        self._release(left)

    def _release(self, connection: duckdb.DuckDBPyConnection) -> None:
        with suppress(duckdb.Error):
            connection.close()
        if self.path:
            _open[self.path] -= 1
            self.path = None


def _rows(store: Store, sql: str, params: tuple) -> tuple[tuple, ...]:
    return tuple(store.rows(sql, params))


def open_store(home: Path | None = None) -> Store:
    """Open the results of a home, up to date; in memory, with a notice, where the file cannot be used.

    A damaged file is renamed and recreated. A kill while DuckDB creates its file leaves one of 0 bytes.
    """
    home = Path(home) if home else journal.home()
    remove_abandoned_drafts(home / "runs")
    path = (home / "store.duckdb").resolve()
    store = _open_store(home, path)
    if not store.damaged:
        return store
    try:
        with open(path.with_name(f"{path.name}.lock"), "ab") as lock:
            take_lock(lock.fileno(), fcntl.LOCK_EX, _WAIT_S)
            again = _open_store(home, path)
            if not again.damaged:  # another process recreated it
                return again
            again.close()
            said = _move_aside(path)
            store = _open_store(home, path)
            store.mended = said
    except OSError:
        pass  # the copy in memory serves, and its notice says what to do
    return store


def _open_store(home: Path, path: Path) -> Store:
    notice, damaged = None, False
    try:
        home.mkdir(parents=True, exist_ok=True)
        connection = _connect_patiently(path)
        _open[path] = _open.get(path, 0) + 1
    except (OSError, StoreError, duckdb.Error) as error:
        connection, notice, damaged = _connect(None), _notice(path, error), _is_damage(path, error)
    store = Store(home, connection, None if notice else path, notice, damaged)
    store.refresh()
    return store


def _move_aside(path: Path) -> str:
    """Rename a damaged file and its log, in place of those moved before; returns a sentence about it."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    log = path.with_name(f"{path.name}.wal")
    if log.exists():
        log.replace(aside.with_name(f"{aside.name}.wal"))
    return f"{path.name} was damaged and is recreated from the run folders; the damaged file is kept as {aside.name}."


def _is_damage(path: Path | None, error: Exception) -> bool:
    return bool(path and path.is_file() and not _holder(error) and _DAMAGE.search(str(error)))


def rebuild(home: Path | None = None) -> int:
    """Recreate the file from the run folders; returns how many measurements it holds.

    Raises StoreError if a process has it open, or if it cannot be written.
    """
    home = Path(home) if home else journal.home()
    path = (home / "store.duckdb").resolve()
    if _open.get(path):
        raise StoreError(f"This process has {path} open; close the store first.")
    try:
        _connect(path).close()
    except (duckdb.Error, StoreError) as error:
        if pid := _holder(error):
            raise StoreError(f"Process {pid} has {path} open; stop it first, or leave the file as it is.") from error
        if isinstance(error, StoreError):
            raise StoreError(f"{path} is not replaced, because {error}; move it away first.") from error
    try:
        for name in (path.name, f"{path.name}.wal"):
            path.with_name(name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be replaced: {error.strerror}.") from error
    with closing(open_store(home)) as store:
        if store.notice:
            raise StoreError(store.notice)
        return store.rows("SELECT count(*) FROM measurements")[0][0]


def _connect_patiently(path: Path) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return _connect(path)
        except duckdb.IOException as error:
            if not _holder(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.05, 0.15))


def _connect(path: Path | None) -> duckdb.DuckDBPyConnection:
    """Open a locked-down connection whose tables are there. Raises StoreError if the file is somebody else's."""
    config: dict[str, Any] = {
        "threads": THREADS,
        "memory_limit": "2GB",
        "temp_directory": str(Path(tempfile.gettempdir()) / f"attnbench-spill-{os.getpid()}"),
    }
    connection = duckdb.connect(str(path) if path else ":memory:", config=config)
    try:
        if not connection.execute("SELECT current_setting('lock_configuration')").fetchone()[0]:
            connection.execute("SET enable_progress_bar = false")  # it would be printed to stdout; cursors inherit this
            shipped = columns.quoted(journal.PUBLISHED)
            connection.execute(f"SET allowed_directories = [{shipped}]; SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        _ensure_layout(connection)
    except (duckdb.Error, StoreError):
        connection.close()
        raise
    return connection


def _ensure_layout(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables where there are none, or those of another version: all that they hold is in the run folders."""
    with closing(connection.cursor()) as cursor:
        tables = [name for (name,) in cursor.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        if tables and "store" not in tables:
            raise StoreError("it is another program's database")
        if tables and cursor.execute("SELECT layout FROM store").fetchall() == [(LAYOUT,)]:
            return
        cursor.begin()
        cursor.execute("DROP VIEW IF EXISTS results")
        for name in tables:
            cursor.execute(f'DROP TABLE "{name}"')
        cursor.execute(SCHEMA)
        cursor.execute(summary.TABLES)
        cursor.execute("INSERT INTO store VALUES (?, ?, 0)", [LAYOUT, uuid.uuid4().hex[:8]])
        cursor.commit()
        cursor.execute("CHECKPOINT")  # a crash before it would have to replay tables being made


def _of_the_file(error: duckdb.Error) -> bool:
    """Tell whether the file is to blame and not the query; a block with a wrong checksum raises a bare Error."""
    return isinstance(error, _FILE_TROUBLE) or type(error) is duckdb.Error


def _holder(error: Exception) -> str | None:
    """Return the id of the process that has a refused lock."""
    if "Could not set lock" not in str(error):
        return None
    match = re.search(r"PID (\d+)", str(error))
    return match.group(1) if match else "unknown"


def _notice(path: Path | None, error: Exception) -> str:
    """Return what happened and what to do, in one sentence for the reader."""
    text = str(error)
    if pid := _holder(error):
        return f"{_SAME_RESULTS}, which stays up to date: process {pid} has {path} open; end it to use the file."
    if "No space left" in text or "File too large" in text or "quota" in text:
        return f"{_SAME_RESULTS}: there is no space for {path}; free some and start again."
    if isinstance(error, OSError) or "ermission denied" in text or "Read-only file system" in text:
        return (
            f"{_SAME_RESULTS}: {path} cannot be written; set ATTNBENCH_HOME to a folder that can be to keep the file."
        )
    if isinstance(error, StoreError):
        return f"{_SAME_RESULTS}: {path} cannot be used ({text}); move it away to have the file."
    reason = "it is damaged" if _DAMAGE.search(text) else _first_line(error)
    return f"{_SAME_RESULTS}: {path} cannot be used ({reason}); `python -m results rebuild` recreates it."


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200].rstrip(".")
