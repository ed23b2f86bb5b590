"""Journal lines into the measurements table, fast and each one once.

DuckDB parses the JSON. A line that is exactly as our own writer writes it (a regular expression made from
`results.records` says so) goes straight in; any other line is judged by `results.records` itself, and either written
anew and taken, or kept as a problem. So the fast way never takes what the slow way would refuse.
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
from results.records import CASE_FIELDS, LATER_CASE_FIELDS, MAX_RAGGED, NUMBERS, RUN_SCHEMA, RecordError, Run, Status
from results.schema import LARGEST_WHOLE, Field
from results.sql import SqlFile

_SQL = SqlFile(__file__)

Problem = tuple[str, int, str]  # run_id, line (0 is run.json), reason


class Line(NamedTuple):
    """One complete line of a run's journal."""

    run_id: str
    number: int  # from 1
    text: str


RUN_COLUMNS = {name: SQL_TYPES[rules.kind] for name, rules in RUN_SCHEMA.items()}
RUN_OBJECTS = tuple(name for name, rules in RUN_SCHEMA.items() if rules.kind == "object")  # stored as JSON

_ESCAPE = r'["\\/bfnrt]|u[0-9a-ce-f][0-9a-f]{3}|ud[0-7][0-9a-f]{2}|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}'
_TEXT = rf'"(?:[^"\\\x00-\x1f]|\\(?:{_ESCAPE}))*"'
_FLOAT = r"-?\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?"
_DIGITS = len(str(LARGEST_WHOLE))  # so many nines are the largest
_WHOLE = rf"\d{{1,{_DIGITS}}}"
_ABOVE_0 = rf"[1-9]\d{{0,{_DIGITS - 1}}}"
_SHAPES = {
    "VARCHAR": rf"(?:null|{_TEXT})",
    "INTEGER": rf"(?:null|{_WHOLE})",
    "DOUBLE": rf"(?:null|{_FLOAT})",
    "BOOLEAN": r"(?:null|true|false)",
    "DOUBLE[]": rf"\[(?:{_FLOAT}(?:,{_FLOAT})*)?\]",
    "VARCHAR[]": rf"\[(?:{_TEXT}(?:,{_TEXT})*)?\]",
    "INTEGER[]": rf"\[(?:{_WHOLE}(?:,{_WHOLE})*)?\]",
}
_MEANINGS = {
    "VARCHAR": "text that UTF-8 can hold",
    "INTEGER": "a whole number of ordinary size",
    "DOUBLE": "a number below 1e100",
    "BOOLEAN": "true or false",
    "DOUBLE[]": "a list of numbers",
    "VARCHAR[]": "a list of texts",
    "INTEGER[]": "a list of whole numbers",
}


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
CANONICAL = f"(?:{_WITH_NUMBERS}|{_WITHOUT_NUMBERS})"

_STRUCTURE = json.dumps({name: [kind[:-2]] if kind.endswith("[]") else kind for name, kind in COLUMNS.items()})
_AS_TIME = "make_timestamp(epoch_us(try_cast({} AS TIMESTAMPTZ)))"  # an offset is honoured, none means UTC
_AS_STORED = {"time": _AS_TIME.format("time"), "round_sizes": "coalesce(round_sizes, [])"}
_INSERT = _SQL("insert", columns=", ".join(COLUMNS), stored=", ".join(_AS_STORED.get(name, name) for name in COLUMNS))


# What Measurement.measurement_id is made of, in its order; odd characters may differ, and then get the closer look.
def _key_part(at: int, name: str) -> str:
    """Return a field of the case within the id's text; one that came later is left out where nothing is said."""
    part = f"'{', ' * bool(at)}\"{name}\": ', key[{at + 2}]"
    if name not in LATER_CASE_FIELDS:
        return part
    return f"CASE WHEN coalesce(key[{at + 2}]::VARCHAR, 'null') = 'null' THEN '' ELSE concat({part}) END"


_CASE_KEY = ", ".join(_key_part(at, name) for at, name in enumerate(sorted(CASE_FIELDS)))
_OTHER_KEYS = ("implementation", "mode", "timing", "metric", "baseline", "origin")
_KEYS = [f"$.{name}" for name in ("run_id", *sorted(CASE_FIELDS), *_OTHER_KEYS)]
_OTHER_KEY = ", ".join(f"', ', key[{at}]" for at in range(len(CASE_FIELDS) + 2, len(_KEYS) + 1))
_ID = f"sha256(concat('[', key[1], ', {{', {_CASE_KEY}, '}}', {_OTHER_KEY}, ']'))[:20]"
# What the rules of a measurement's numbers can refuse (see results.records); a line that meets one gets a closer look.
_RULED = {
    **dict.fromkeys(("value", "mean", "std", "p20", "p80", "ci_low", "ci_high"), "DOUBLE"),
    "metric": "VARCHAR",
    "statistic": "VARCHAR",
    "sm_clock_mhz": "DOUBLE",
    "n": "INTEGER",
    "samples": ["DOUBLE"],
    "round_sizes": ["INTEGER"],
}
_LEAST = "least(m.value, m.mean, m.p20, m.p80, m.ci_low, m.ci_high, list_min(m.samples))"
_NOT_BELOW_0 = [name for name, metric in METRICS.items() if metric.range != SIGNED]
_NOT_0 = [name for name, metric in METRICS.items() if metric.range == ABOVE_ZERO]
_BREAKS_A_RULE = _SQL("breaks_a_rule", least=_LEAST, not_below_0=_NOT_BELOW_0, not_0=_NOT_0)
_CHOICES = {name: rules.choices for name, rules in SCHEMA.items() if rules.choices} | {
    "status": tuple(map(str, Status))
}
_NO_CHOICE = " OR ".join(f"NOT list_contains({[*choices]}, m.{name})" for name, choices in _CHOICES.items())
_ODD_COLUMNS = _SQL("odd_columns", breaks_a_rule=_BREAKS_A_RULE, no_choice=_NO_CHOICE)
_LENGTHS = f"key[{_KEYS.index('$.lengths') + 1}]::VARCHAR"  # `results.records` judges batch specs
_NOT_CANONICAL = _SQL(
    "not_canonical",
    keys=_KEYS,
    ruled=json.dumps(_RULED),
    breaks_a_rule=_BREAKS_A_RULE,
    id=_ID,
    lengths=_LENGTHS,
    max_ragged=MAX_RAGGED,
    **{name: _KEYS.index(f"$.{name}") + 1 for name in ("num_heads", "num_kv_heads", "batch", "features")},
)
_KNOWN = "SELECT measurement_id FROM measurements WHERE measurement_id IN (SELECT measurement_id FROM incoming)"


def insert_lines(cursor: duckdb.DuckDBPyConnection, lines: list[Line]) -> tuple[int, list[Problem]]:
    """Insert what is new among these lines; returns how many rows that is and what is wrong with which line."""
    odd = _not_canonical(cursor, lines, check_id=True)
    if not odd:
        return _insert_new(cursor, lines), []
    mended, problems = _mend([lines[position] for position in odd])
    unfit = {mended[position] for position in _not_canonical(cursor, mended, check_id=False)}  # `_mend` made the ids
    good = [line for position, line in enumerate(lines) if position not in odd]
    good += [line for line in mended if line not in unfit]
    order = {(line.run_id, line.number): position for position, line in enumerate(lines)}
    good.sort(key=lambda line: order[line.run_id, line.number])
    return _insert_new(cursor, good), sorted(problems + [_problem(line) for line in unfit])


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


def _not_canonical(cursor: duckdb.DuckDBPyConnection, lines: list[Line], *, check_id: bool) -> set[int]:
    """Return positions of the lines that need a closer look."""
    prefixes = {run_id: f'{{"run_id":{json.dumps(run_id)},' for run_id in {line.run_id for line in lines}}
    _register(cursor, line=[line.text for line in lines], prefix=[prefixes[line.run_id] for line in lines])
    return {position for (position,) in cursor.execute(_NOT_CANONICAL, [CANONICAL, *[check_id] * 3]).fetchall()}


def _insert_new(cursor: duckdb.DuckDBPyConnection, lines: list[Line]) -> int:
    """Insert canonical lines whose id is not there already; returns how many."""
    if not lines:
        return 0
    by_id: dict[str, str] = {}
    for line in lines:
        by_id.setdefault(line.text[-22:-2], line.text)  # the id is last in a canonical line
    _register(cursor, measurement_id=list(by_id))
    for (known,) in cursor.execute(_KNOWN).fetchall():
        del by_id[known]
    if by_id:
        _register(cursor, line=list(by_id.values()))
        cursor.execute(f"{_INSERT} (SELECT unnest(json_transform(line, '{_STRUCTURE}')) FROM incoming)")
    return len(by_id)


def _mend(lines: list[Line]) -> tuple[list[Line], list[Problem]]:
    """Return the lines as our own writer would write them, and what is wrong with those that cannot be."""
    mended, problems = [], []
    for line in lines:
        try:
            measurement = parse_line(line.text.encode(), line.run_id)
            mended.append(Line(line.run_id, line.number, line_of(measurement).removesuffix("\n")))
        except RecordError as error:
            problems.append((line.run_id, line.number, str(error)))
    return mended, problems


def _problem(line: Line) -> Problem:
    """Return which field keeps a line out that is valid JSON and breaks no rule of the records."""
    for name, value in json.loads(line.text).items():
        if not re.fullmatch(_PATTERNS[name], json.dumps(value, separators=(",", ":"))):
            return line.run_id, line.number, f"{name} is {value!r}; it must be {_MEANINGS[COLUMNS[name]]}."
    return line.run_id, line.number, "Its numbers do not fit its status."


def _register(cursor: duckdb.DuckDBPyConnection, **columns: list[str]) -> None:
    """Offer the columns to the next query as the table `incoming`."""
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    cursor.register("incoming", frame.assign(position=range(len(frame))))
