"""The measurements of a finished run as compressed columns: `measurements.parquet`, a fraction of the journal's size.

Each column is a field of a journal line. DuckDB writes and reads the file. It is imported only then, so that a machine
without DuckDB can still write a journal.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.files import durable
from results.records import CASE_SCHEMA, MEASUREMENT_SCHEMA
from results.schema import KINDS

if TYPE_CHECKING:
    import duckdb

NAME = "measurements.parquet"
SCHEMA = {**MEASUREMENT_SCHEMA, **CASE_SCHEMA}  # in the order of a journal line
SQL_TYPES = {kind: said["sql"] for kind, said in KINDS.items()}
COLUMNS = {name: SQL_TYPES[rules.kind] for name, rules in SCHEMA.items()} | {"measurement_id": "VARCHAR"}
_PIECE = 2000  # rows fetched at a time


class ColumnsError(ValueError):
    """A file of columns cannot be written or read; the message says why."""


def write(path: Path, lines: Iterable[str], columns: Mapping[str, str] = COLUMNS, level: int = 19) -> None:
    """Write JSON lines, by default those of a journal, as columns with these types, compressed at that level.

    When this returns, the file is complete and on disk. Raises ColumnsError without DuckDB, and OSError if the file
    cannot be written.
    """
    types = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    with tempfile.TemporaryDirectory() as folder, _connection() as connection:
        journal = Path(folder) / "lines.json"
        with open(journal, "w", encoding="utf-8") as file:
            file.writelines(lines)
        rows = f"read_json({quoted(journal)}, format = 'newline_delimited', columns = {{{types}}})"
        draft = Path(folder) / NAME
        connection.execute(
            f"COPY (FROM {rows}) TO {quoted(draft)} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {level})"
        )
        durable.write_synced(path, draft.read_bytes())


def read(path: Path, metrics: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the record of each journal line, or of these metrics. Raises ColumnsError if the file cannot be read."""
    with _connection() as connection:
        of_them, wanted = (" WHERE metric IN ?", [[*metrics]]) if metrics else ("", [])
        sql = f"SELECT {selected(connection, path)} FROM read_parquet(?){of_them}"
        cursor = connection.execute(sql, [str(path), *wanted])
        while rows := cursor.fetchmany(_PIECE):
            yield from (dict(zip(COLUMNS, row, strict=True)) for row in rows)


def selected(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Return the SELECT list that gives every field of COLUMNS; a field added after the file was written is NULL.

    Raises ColumnsError if a column is missing, unknown or of another type.
    """
    described = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    there = {name: kind for name, kind, *_ in described}
    later = {name for name, rules in SCHEMA.items() if rules.later}
    if missing := COLUMNS.keys() - there.keys() - later:
        raise ColumnsError(f"Missing columns {sorted(missing)}.")
    if odd := sorted(name for name, kind in there.items() if COLUMNS.get(name) != kind):
        raise ColumnsError(f"Columns {odd} are unknown or of another type.")
    return ", ".join(name if name in there else f"NULL::{kind} AS {name}" for name, kind in COLUMNS.items())


def size(path: Path) -> tuple[int, int]:
    """Return the number of rows, and the bytes that they unpack to. Raises ColumnsError if the file cannot be read."""
    with _connection() as connection:
        rows, unpacked = connection.execute(
            "SELECT (SELECT sum(num_rows) FROM parquet_file_metadata($1)), "
            "(SELECT sum(total_uncompressed_size) FROM parquet_metadata($1))",
            [str(path)],
        ).fetchone()
        return int(rows or 0), int(unpacked or 0)


def quoted(path: Path) -> str:
    """Return a path as an SQL literal, for statements that take no parameters."""
    return "'" + str(path).replace("'", "''") + "'"


@contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        import duckdb
    except ImportError as error:
        raise ColumnsError(f"{NAME} needs the package duckdb: pip install duckdb.") from error
    try:
        with _database(os.getpid()).cursor() as connection:
            connection.execute("SET enable_progress_bar = false")
            yield connection
    except duckdb.Error as error:
        raise ColumnsError(str(error).strip().splitlines()[0]) from error


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """Return a process's database in memory, which takes longer to open than most files take to read."""
    import duckdb

    return duckdb.connect(config={"threads": 1, "memory_limit": "2GB", "enable_external_file_cache": False})
