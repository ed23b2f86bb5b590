"""Exports of measurements: CSV, JSON, Markdown and Parquet, each row with its run; and files of other tools.

CSV and Parquet have the columns of `COLUMNS`: the fields of a journal line in its order (`run_id`, `implementation`,
`metric`, `status` and so on, then those of the case), and after them every field of the run with the prefix `run_`
(`run_source`, `run_created` and so on, to `run_sweep`), and `run_implementations` if a run has it. In CSV:

- a missing value is an empty cell; an empty text is one apostrophe;
- numbers read back equal, booleans are `true` and `false`;
- `samples`, `flags` and `round_sizes` are JSON arrays; `run_sweep`, `run_measured_tflops` and `run_implementations`
  are JSON objects;
- a text that starts with one of = + - @ ' or a tab or a carriage return gets a leading apostrophe, so that no
  spreadsheet runs it as a formula. `results.render.text.unguard` removes one leading apostrophe from a text cell.

JSON is `{"runs": [...], "measurements": [...]}`, both as in a run folder. Markdown is for reading: it leaves out
samples, rounds and empty columns. The files of other tools are described in `peers.py`.
"""

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from results.files import columns
from results.records import LATER_RUN_FIELDS
from results.render import peers
from results.render.markdown import escape
from results.render.text import guard
from results.store.database import Store
from results.store.ingest import COLUMNS as STORED
from results.store.ingest import RUN_COLUMNS, RUN_OBJECTS

FIELDS = tuple(name for name in STORED if name != "measurement_id")
RUN_FIELDS = tuple(name for name in RUN_COLUMNS if name != "run_id")
COLUMNS = FIELDS + tuple(f"run_{name}" for name in RUN_FIELDS)
_OBJECTS = tuple(RUN_FIELDS.index(name) for name in RUN_OBJECTS)

_KINDS = {f"run_{name}": "BIGINT" if kind == "INTEGER" else kind for name, kind in RUN_COLUMNS.items()}
_TYPES = {name: (STORED | _KINDS)[name] for name in COLUMNS}
_LEVEL = 3  # of compression: an export is made while somebody waits
_NOT_FOR_READING = ("samples", "round_sizes", "run_sweep", "run_implementations")
_SELECT = ", ".join("time_text" if name == "time" else name for name in FIELDS)
_SELECT_RUN = ", ".join("created_text" if name == "created" else name for name in RUN_FIELDS)


@dataclass(frozen=True)
class Selection:
    """A choice of measurements. An empty tuple means all."""

    run: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    implementation: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    mode: tuple[str, ...] = ()
    timing: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # texts such as softcap=50,sinks


EVERYTHING = Selection()
_FILTERS = {f.name: f.name for f in fields(Selection)} | {"run": "run_id", "gpu": "gpu_name"}
_OF_RUNS = ("run", "gpu", "source")


def export(store: Store, form: str, selection: Selection = EVERYTHING) -> bytes:
    """Return the selected measurements as the content of a file; `form` is one of FORMS."""
    file = io.BytesIO()
    write(store, form, file, selection)
    return file.getvalue()


def write(store: Store, form: str, file: BinaryIO, selection: Selection = EVERYTHING) -> int | None:
    """Write the selected measurements row by row; return how many the format can hold, or None if it holds all."""
    return FORMS[form](_Selected(store, selection), file)


def count(store: Store, selection: Selection = EVERYTHING) -> int:
    """Return the number of selected measurements."""
    where, params = _where(selection)
    return store.rows(f"SELECT count(*) FROM results WHERE {where}", params)[0][0]


def parts(store: Store, selection: Selection, most: int) -> list[list[str]]:
    """Return the selected runs in groups of at most `most` measurements; a larger run is a separate group."""
    where, params = _where(selection)
    sql = f"SELECT run_id, count(*) FROM results WHERE {where} GROUP BY run_id ORDER BY 1"
    groups: list[list[str]] = []
    held = most
    for run_id, number in store.rows(sql, params):
        if held + number > most:
            groups.append([])
            held = 0
        groups[-1].append(run_id)
        held += number
    return groups


def choices(store: Store, name: str) -> list[str]:
    """Return the possible values of a field of the selection."""
    column = _FILTERS[name]
    rows = store.rows(f"SELECT DISTINCT {column} FROM results WHERE {column} IS NOT NULL ORDER BY 1")
    return [value for (value,) in rows]


class _Selected:
    """The selected measurements, streamed so that a large selection needs little memory."""

    def __init__(self, store: Store, selection: Selection) -> None:
        self._store = store
        self._selection = selection
        self.runs: dict[str, tuple] = {}
        where, params = _where(selection)
        chosen = f"SELECT DISTINCT run_id FROM results WHERE {where}"
        sql = f"SELECT run_id, {_SELECT_RUN} FROM runs WHERE run_id IN ({chosen}) ORDER BY created, run_id"
        for run_id, *values in store.rows(sql, params):
            for at in _OBJECTS:
                values[at] = None if values[at] is None else json.loads(values[at])
            self.runs[run_id] = tuple(values)
        unsaid = {
            name for at, name in enumerate(RUN_FIELDS) if all(values[at] is None for values in self.runs.values())
        }
        self.run_fields = tuple(name for name in RUN_FIELDS if name not in unsaid.intersection(LATER_RUN_FIELDS))
        self.columns = FIELDS + tuple(f"run_{name}" for name in self.run_fields)

    def rows(self) -> Iterator[tuple]:
        """Yield the values of `columns`, in the order of the journals."""
        for values, rows in self.by_run():
            for row in rows:
                yield row + values

    def by_run(self) -> Iterator[tuple[tuple, Iterator[tuple]]]:
        """Yield the run columns and the measurements of each run."""
        where, params = _where(self._selection, without=_OF_RUNS)
        sql = f"SELECT {_SELECT} FROM measurements WHERE run_id = ? AND {where}"
        for run_id, values in self.runs.items():
            said = tuple(value for name, value in zip(RUN_FIELDS, values, strict=True) if name in self.run_fields)
            yield said, self._store.stream(sql, [run_id, *params])


def _where(selection: Selection, *, without: tuple[str, ...] = ()) -> tuple[str, list[list[str]]]:
    chosen = {_FILTERS[name]: list(of) for name, of in vars(selection).items() if of and name not in without}
    return " AND ".join(["true", *(f"{column} = ANY(?)" for column in chosen)]), list(chosen.values())


def _csv(table: _Selected, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\r\n")  # it quotes only the line ends that it uses itself
    writer.writerow(table.columns)
    for values, rows in table.by_run():
        of_run = [_cell(value) for value in values]
        writer.writerows([*map(_cell, row), *of_run] for row in rows)
    text.detach()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value) if value else str(value)
    return value


def _json(table: _Selected, file: BinaryIO) -> None:
    runs = [
        {"run_id": run_id}
        | {name: value for name, value in zip(RUN_FIELDS, values, strict=True) if name in table.run_fields}
        for run_id, values in table.runs.items()
    ]
    file.write(b'{"runs": ' + json.dumps(runs).encode() + b', "measurements": [')
    for number, row in enumerate(table.rows()):
        file.write(b",\n" if number else b"\n")
        file.write(json.dumps(dict(zip(FIELDS, row, strict=False))).encode())
    file.write(b"\n]}\n")


def _markdown(table: _Selected, file: BinaryIO) -> None:
    rows = list(table.rows())
    used = [any(row[index] not in (None, []) for row in rows) for index in range(len(table.columns))]
    shown = [index for index, name in enumerate(table.columns) if used[index] and name not in _NOT_FOR_READING]
    lines = [[table.columns[index] for index in shown], ["---"] * len(shown)]
    lines += [[_words(row[index]) for index in shown] for row in rows]
    file.write("".join(f"| {' | '.join(line)} |\n" for line in lines).encode())


def _words(value: Any) -> str:
    """Return a value as one line of Markdown, with the marks in texts escaped."""
    if value is None:
        return ""
    if not isinstance(value, list | str):
        return str(_cell(value))
    text = ", ".join(value) if isinstance(value, list) else value
    return " ".join(escape(text).split())


def _parquet(table: _Selected, file: BinaryIO) -> None:
    """Write Parquet, in the way of the runs that ship."""
    lines = (json.dumps(dict(zip(table.columns, row, strict=True))) + "\n" for row in table.rows())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.parquet"
        columns.write(path, lines, {name: _TYPES[name] for name in table.columns}, _LEVEL)
        with open(path, "rb") as written:
            shutil.copyfileobj(written, file)


def _for_peer(table: _Selected, file: BinaryIO, *, write: Callable[[peers.Runs, BinaryIO], int]) -> int:
    """Write the format of another tool; return how many measurements it can hold."""
    ids = iter(table.runs)
    runs = (
        (
            {"run_id": next(ids)} | dict(zip(table.run_fields, values, strict=True)),
            (dict(zip(FIELDS, row, strict=True)) for row in rows),
        )
        for values, rows in table.by_run()
    )
    return write(runs, file)


FORMS: dict[str, Callable[[_Selected, BinaryIO], int | None]] = {  # None: every selected measurement is written
    "csv": _csv,
    "json": _json,
    "md": _markdown,
    "parquet": _parquet,
    **{name: partial(_for_peer, write=write) for name, write in peers.FORMS.items()},
}
