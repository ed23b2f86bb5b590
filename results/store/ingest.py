"""Journal lines into the measurements table, each one once.

`results.records` judges each line. One that is exactly as our own writer writes it (a regular expression made from
`results.records` says so) goes in as it is, any other is written anew, and one that is no measurement is a problem.
"""

import json
import re
from typing import Any, NamedTuple

import duckdb
import pandas as pd

from results.files import columns, journal
from results.files.columns import COLUMNS, SCHEMA, SQL_TYPES
from results.files.journal import RunFolder, line_of, parse_line
from results.metrics import ABOVE_ZERO, METRICS, SIGNED
from results.records import NUMBERS, RUN_SCHEMA, Measurement, RecordError, Run, Status
from results.schema import KINDS, LARGEST_WHOLE, Field
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

_ESCAPE = r'["\\/bfnrt]|u[0-9a-ce-f][0-9a-f]{3}|ud[0-7][0-9a-f]{2}|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}'
_TEXT = rf'"(?:[^"\\\x00-\x1f]|\\(?:{_ESCAPE}))*"'
_FLOAT = r"-?\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?"
_DIGITS = len(str(LARGEST_WHOLE))  # so many nines are the largest
_WHOLE = rf"\d{{1,{_DIGITS}}}"
_ABOVE_0 = rf"[1-9]\d{{0,{_DIGITS - 1}}}"
_SCALARS = {"VARCHAR": _TEXT, "INTEGER": _WHOLE, "DOUBLE": _FLOAT, "BOOLEAN": "true|false"}
_SHAPES = {kind: f"(?:null|{one})" for kind, one in _SCALARS.items()}
_SHAPES |= {f"{kind}[]": rf"\[(?:{one}(?:,{one})*)?\]" for kind, one in _SCALARS.items()}
_WORDS = {said["sql"]: said["words"] for said in KINDS.values() if "words" in said}


def _pattern(rules: Field) -> str:
    """Return what a field's value looks like in a line of our own writer."""
    if rules.choices:
        return rf'(?:null|"(?:{"|".join(filter(None, (*rules.choices, rules.pattern)))})")'
    if rules.minimum == 1:
        return rf"(?:null|{_ABOVE_0})"
    return _TEXT if rules.kind == "text" and not rules.nullable else _SHAPES[SQL_TYPES[rules.kind]]


_PATTERNS = {name: _pattern(rules) for name, rules in SCHEMA.items()} | {"measurement_id": '"[0-9a-f]{20}"'}


def _line_pattern(special: dict[str, str]) -> str:
    """Return what a line looks like; journals from before a later field was added lack it, and are as good."""
    first, *others = ((name, f'"{name}":{(_PATTERNS | special)[name]}') for name in COLUMNS)
    later = {name for name, rules in SCHEMA.items() if rules.later}
    return r"\{" + first[1] + "".join(f"(?:,{p})?" if name in later else f",{p}" for name, p in others) + r"\}"


_WITH_NUMBERS = _line_pattern({"status": '"ok"', "value": _FLOAT})
_OTHER = "|".join(status for status in Status if status is not Status.OK)
_WITHOUT_NUMBERS = _line_pattern({"status": f'"(?:{_OTHER})"'} | dict.fromkeys(NUMBERS, "null"))
CANONICAL = re.compile(f"(?:{_WITH_NUMBERS}|{_WITHOUT_NUMBERS})", re.ASCII)

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
            text = content.decode()
            measurement = parse_line(content, run_id)
            unusual = measurement.case.features or not CANONICAL.fullmatch(text)
            if unusual or text[-22:-2] != measurement.measurement_id:
                text = _rewritten(measurement)
            new.setdefault(text[-22:-2], text)  # the id is last in a canonical line
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


def _rewritten(measurement: Measurement) -> str:
    """Return a line as our own writer writes it. Raises RecordError if the table cannot hold a field."""
    text = line_of(measurement).rstrip("\n")
    if CANONICAL.fullmatch(text):
        return text
    for name, value in json.loads(text).items():
        if not re.fullmatch(_PATTERNS[name], json.dumps(value, separators=(",", ":"))):
            raise RecordError(f"{name} is {value!r}; it must be {_WORDS[COLUMNS[name]]}.")
    raise RecordError("Its numbers do not fit its status.")


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
