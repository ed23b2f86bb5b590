"""Journal lines into the measurements table, each one once.

`results.records` judges each line. It is written anew for the table, and one that is no measurement is a problem.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import duckdb
import pandas as pd

from results.files import columns, journal
from results.files.columns import COLUMNS, SCHEMA, SQL_TYPES
from results.files.journal import RunFolder, line_of, parse_line
from results.metrics import ABOVE_ZERO, METRICS, SIGNED
from results.records import CASE_SCHEMA, MEASUREMENT_SCHEMA, RUN_SCHEMA, Measurement, RecordError, Run, Status
from results.schema import KINDS, LARGEST_WHOLE, LISTS, magnitude_fits
from results.sql import SqlFile

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
    for record, schema in ((measurement, MEASUREMENT_SCHEMA), (measurement.case, CASE_SCHEMA)):
        for name, rules in schema.items():
            value = getattr(record, name)
            if not (rules.nullable if value is None else _HOLDS[rules.kind](value)):
                raise RecordError(f"{name} is {value!r}; it must be {KINDS[rules.kind]['words']}.")
    return line_of(measurement).rstrip("\n")


def sound_columns(cursor: duckdb.DuckDBPyConnection, folder: RunFolder) -> str | None:
    """Return the query for the rows of a shipped run's columns; None if `results.records` has to judge each row.

    Files of other places than the repository are not trusted: their rows take the way of journal lines.
    """
    if folder.path.parent != journal.PUBLISHED:
        return None
    path = folder.columns_path
    try:
        fields = columns.selected(cursor, path)
        *_, odd = cursor.execute(_ODD_COLUMNS, [folder.run_id, str(path)]).fetchone()
    except (duckdb.Error, columns.ColumnsError):
        return None
    return f"SELECT {fields} FROM read_parquet({columns.quoted(path)})" if not odd else None


def insert_columns(cursor: duckdb.DuckDBPyConnection, query: str) -> int:
    """Insert the rows of a query that `sound_columns` returned; returns how many."""
    return cursor.execute(f"{_INSERT} ({query})").fetchone()[0]


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
