"""The project's own CSV, as `python -m results export --format csv` writes it; the rules stand in
results/render/export.py.

A run keeps its id and all it says of itself, except that its source becomes `upload`. So a file that holds runs which
are here already adds nothing, wherever it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError, wall
from results.formats.tables import MARKDOWN, Sheet
from results.formats.upload import Column, Format, Rejection, Understanding, Upload, reason_against_file, sheet_of
from results.formats.validation import check_metric, check_text, fault, run_of, with_its_samples
from results.records import CASE_SCHEMA, MEASUREMENT_SCHEMA, RUN_SCHEMA, Case, Measurement, RecordError, Run
from results.render.text import unguard
from results.schema import LISTS, Field

NAME = "own_csv"
DESCRIPTION = "the CSV that attnbench exports, with any number of runs"
REQUIRED = ("run_id", "implementation", "metric", "status", "value")

Parsers = Mapping[str, Callable[[str], Any]]  # by kind of field, see results/schema.py

_PREFIX = "run_"
_LISTS = tuple(name for name, rules in MEASUREMENT_SCHEMA.items() if rules.kind in LISTS)
_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    return reason_against_file(upload, _reason_against)


def understand(upload: Upload) -> Understanding:
    """Return the rows as the runs and measurements they were."""
    return understand_own(upload, sheet_of(upload, _reason_against), format=NAME, parsers=PARSERS)


def understand_own(
    upload: Upload, sheet: Sheet, *, format: str, parsers: Parsers, assumptions: tuple[str, ...] = ()
) -> Understanding:
    """Return the rows of a table with the columns of an export; `parsers` reads a cell by the kind of its field."""
    reader = _TableReader(_Columns(sheet.header), parsers)
    for line, row in sheet.rows:
        with wall(f"{upload.filename}, line {line},"):
            reader.read(line, row)
    if not reader.measurements and not reader.rejected:
        raise UploadError(f"{upload.filename} has a header and no numbers.")
    runs = f"{len(reader.runs)} run{'s' * (len(reader.runs) != 1)}"
    return Understanding(
        upload=upload,
        format=format,
        description=f"{sheet.description}, {len(sheet.rows):,} rows of {runs}",
        runs=tuple(run for run, _ in reader.runs.values()),
        measurements=tuple(reader.measurements),
        columns=tuple(Column(name, name if name in reader.columns.known else None) for name in sheet.header),
        rejected=tuple(reader.rejected),
        assumptions=assumptions,
    )


def _reason_against(sheet: Sheet) -> str | None:
    if sheet.description == MARKDOWN:
        return "It is a Markdown table."
    return lacking_own(sheet)


def lacking_own(sheet: Sheet) -> str | None:
    """Return which columns of an export the table lacks; None if it has them."""
    missing = [name for name in REQUIRED if name not in sheet.header]
    return f"It lacks the columns {', '.join(missing)}." if missing else None


class _Columns:
    """Where each field of a measurement, its case and its run stands."""

    def __init__(self, header: Sequence[str]) -> None:
        self.header = tuple(header)
        place = {name: at for at, name in enumerate(header)}
        self.case = {name: place[name] for name in CASE_SCHEMA if name in place}
        self.measurement = {name: place[name] for name in MEASUREMENT_SCHEMA if name in place}
        self.run = {name: place[_PREFIX + name] for name in RUN_SCHEMA if _PREFIX + name in place and name != "run_id"}
        self.run["run_id"] = place["run_id"]
        self.known = {header[at] for at in (*self.case.values(), *self.measurement.values(), *self.run.values())}


@dataclass
class _TableReader:
    """What has been read of a table of ours: runs, measurements, and the cells that were not taken."""

    columns: _Columns
    parsers: Parsers
    runs: dict[str, tuple[Run, tuple[str, ...]]] = field(default_factory=dict)  # with the cells it was read from
    cases: dict[tuple[str, ...], Case] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    lines: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def read(self, line: int, row: Sequence[str]) -> None:
        """Read one row into a measurement or a rejection."""
        if len(row) != len(self.columns.header):
            self._reject(line, row, f"has {len(row)} cells where the header has {len(self.columns.header)}")
            return
        try:
            run = self._run(line, row)
            measurement = self._measurement(row)
        except _BadCell as error:
            self.rejected.append(Rejection(line, error.column, error.value[:80], error.reason))
            return
        except CellError as error:
            self._reject(line, row, str(error))
            return
        first = self.lines.setdefault(measurement.key, line)
        if first != line:
            self._reject(line, row, f"repeats line {first}")
            return
        self.runs.setdefault(run.run_id, (run, self._run_cells(row)))
        self.measurements.append(measurement)

    def _reject(self, line: int, row: Sequence[str], reason: str) -> None:
        self.rejected.append(Rejection(line, "", ", ".join(row)[:80], reason))

    def _run_cells(self, row: Sequence[str]) -> tuple[str, ...]:
        return tuple(row[at] for at in self.columns.run.values())

    def _run(self, line: int, row: Sequence[str]) -> Run:
        known = self.runs.get(unguard(row[self.columns.run["run_id"]]) or "")
        cells = self._run_cells(row)
        if known is None:
            return run_of({"source": "upload"} | self._record(row, self.columns.run, RUN_SCHEMA))
        if known[1] != cells:
            raise CellError(f"says other things of run {known[0].run_id} than the rows before")
        return known[0]

    def _measurement(self, row: Sequence[str]) -> Measurement:
        record = self._record(row, self.columns.measurement, MEASUREMENT_SCHEMA)
        check_metric(record.get("metric"))
        if empty := [name for name in ("run_id", "implementation", "status") if name not in record]:
            raise CellError(f"{empty[0]} is empty")
        record |= {name: tuple(record.get(name) or ()) for name in _LISTS}
        try:
            return with_its_samples(Measurement(case=self._case(row), **record))
        except RecordError as error:
            raise CellError(str(error).rstrip(".")) from error

    def _case(self, row: Sequence[str]) -> Case:
        key = tuple(row[at] for at in self.columns.case.values())
        if key not in self.cases:
            nothing = dict.fromkeys(CASE_SCHEMA)
            self.cases[key] = Case(**nothing | self._record(row, self.columns.case, CASE_SCHEMA))
        return self.cases[key]

    def _record(self, row: Sequence[str], places: Mapping[str, int], schema: Mapping[str, Field]) -> dict[str, Any]:
        """Return the fields whose cells are not empty, in their types."""
        record: dict[str, Any] = {}
        for name, at in places.items():
            cell = row[at]
            if not cell:
                continue
            try:
                record[name] = _parsed(schema[name], self.parsers[schema[name].kind](cell))
            except CellError as error:
                raise _BadCell(name, cell, str(error)) from error
        return record


class _BadCell(CellError):
    """A cell that cannot be taken, with its column and value."""

    def __init__(self, column: str, value: str, reason: str) -> None:
        super().__init__(reason)
        self.column, self.value, self.reason = column, value, reason


def _parsed(rules: Field, value: Any) -> Any:
    if rules.kind != "number" and (reason := fault(rules, value)):  # `values.number` has checked numbers
        raise CellError(reason)
    check_text(rules.name, value)
    return value


def _whole(cell: str) -> int:
    if not _WHOLE.fullmatch(cell):
        raise CellError("is not a whole number")
    return int(cell)


def _boolean(cell: str) -> bool:
    if cell not in ("true", "false"):
        raise CellError("is neither true nor false")
    return cell == "true"


PARSERS: Parsers = {
    "text": unguard,
    "status": unguard,
    "whole": _whole,
    "number": values.number,
    "boolean": _boolean,
    **dict.fromkeys((*LISTS, "object"), values.strict_json),
}


FORMAT = Format(NAME, DESCRIPTION, reason_against, understand)
