"""Files that attnbench wrote: its exports as CSV, Markdown or JSON, run folders, and rendered views, which are refused.

results/render/export.py defines the exports. A run keeps its id and all its fields, except that its source becomes
`upload`. A file whose runs are already in the store therefore adds nothing. Views have rounded numbers.

A run folder comes as its journal or compressed columns alone, or as a .zip, .tar or .tar.gz of one or more folders.
Nothing of an archive is written to disk under its own name: only three file names are read, in bounded sizes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from results.formats import values
from results.formats.archives import COLUMNS, JOURNAL, as_journal, members
from results.formats.errors import CellError, CellFault, UploadError
from results.formats.tables import MARKDOWN, MAX_ROWS, Sheet, check_size, decode
from results.formats.upload import Column, Format, Taken, Understanding, Upload, reason_against_file, sheet_of
from results.formats.validation import check_metric, check_text, fault, measurement_of, run_of, with_its_samples
from results.formats.values import strict_json
from results.records import CASE_SCHEMA, MEASUREMENT_SCHEMA, RUN_SCHEMA, Case, Measurement, Run
from results.render.markdown import NOT_FOR_IMPORT, unescape
from results.render.text import unguard
from results.schema import LISTS, Field

_RUN, _JOURNAL = "run.json", JOURNAL


class Records(Taken):
    """Records that attnbench wrote; two numbers from different places of a source are two."""

    by_origin = True

    def add_run(self, record: Any, where: str) -> Run:
        """Take a run. Raises UploadError if it breaks a rule or is in the file twice."""
        try:
            run = run_of(record)
        except CellError as error:
            raise UploadError(f"{where}: {error}.") from error
        if run.run_id in self.runs:
            raise UploadError(f"Run {run.run_id} is in the file twice.")
        self.runs[run.run_id] = run
        return run


def _against_export(upload: Upload) -> str | None:
    if upload.kind != "JSON" or _is_journal(upload):
        return "It is not a JSON object with runs and measurements."
    return None


def _export(upload: Upload) -> Understanding:
    """Return the runs and measurements unchanged; the line of a rejection is the number in the list."""
    check_size(upload.data)
    runs, measurements = _lists(upload)
    taken = Records(upload)
    for number, record in enumerate(runs, start=1):
        taken.add_run(record, f"Run number {number}")
    for number, record in enumerate(measurements, start=1):
        where = f"{upload.filename}, measurement {number},"
        with taken.part(number, json.dumps(record), "measurements", where):
            taken.keep(_of_one(record, taken), number)
    described = f"JSON, {len(measurements):,} measurements of {len(runs)} run{'s' * (len(runs) != 1)}"
    return taken.understanding(EXPORT.name, described, if_empty="has no measurements")


def _lists(upload: Upload) -> tuple[list[Any], list[Any]]:
    if (count := upload.data.count(b'"implementation"')) > MAX_ROWS:  # before it is parsed
        raise UploadError(f"{upload.filename} has {count:,} measurements; at most {MAX_ROWS:,}. Upload run by run.")
    try:
        record = strict_json(decode(upload.data))
    except CellError as error:
        raise UploadError(f"{upload.filename} {error}.") from error
    lists = [record.get(name) for name in ("runs", "measurements")] if isinstance(record, dict) else [None]
    if not all(isinstance(value, list) for value in lists):
        raise UploadError(f"{upload.filename} is JSON, but not an object with the lists runs and measurements.")
    if len(lists[1]) > MAX_ROWS:
        raise UploadError(f"{upload.filename} has {len(lists[1]):,} measurements; at most {MAX_ROWS:,}.")
    return lists[0], lists[1]


def _of_one(record: Any, taken: Records) -> Measurement:
    measurement = measurement_of(record)
    if measurement.run_id not in taken.runs:
        raise CellError(f"is of run {measurement.run_id[:80]!r}, which is not among the runs")
    return measurement


def _against_folder(upload: Upload) -> str | None:
    if upload.kind in ("a zip archive", "a tar archive", "a Parquet file") or _is_journal(upload):
        return None
    return f"It is neither an archive nor a file of JSON lines such as {_JOURNAL}."


def _is_journal(upload: Upload) -> bool:
    return upload.kind == "JSON" and upload.filename.lower().endswith(".jsonl")


def _folders(upload: Upload) -> Understanding:
    """Return the runs and measurements of all folders in the file."""
    check_size(upload.data)
    if upload.kind == "a Parquet file":
        files = {COLUMNS: upload.data}
    elif _is_journal(upload):
        files = {_JOURNAL: upload.data}
    else:
        files = members(upload.data, {_RUN, _JOURNAL, COLUMNS})
    files = dict(as_journal(*file) for file in files.items())
    taken, assumptions, questions = Records(upload), [], []
    for path in sorted(files):
        if PurePosixPath(path).name != _JOURNAL:
            continue
        *lines, rest = _lines(path, files[path])
        if rest.strip():
            assumptions.append(f"The last line of {path} is cut off and left out.")
        record = str(PurePosixPath(path).with_name(_RUN))
        folder = _Folder(taken, record, files.get(record))
        for line, text in enumerate(lines, start=1):
            if text.strip():
                with taken.part(line, text, path, f"{path}, line {line},"):
                    taken.keep(folder.measurement(text), line)
        if folder.is_unknown:
            unknown = f"There is no {_RUN}, so nothing is known of run {folder.run.run_id}. Which GPU was it?"
            questions.append(unknown)
    return taken.understanding(
        FOLDERS.name,
        f"{len({m.run_id for m in taken.measurements})} run folders, {len(taken.measurements):,} measurements",
        if_empty=f"holds no {_JOURNAL} with numbers in it",
        assumptions=tuple(assumptions),
        questions=tuple(questions),
    )


def _lines(path: str, data: bytes) -> list[str]:
    """Return the lines of a journal; the last one is incomplete, or empty."""
    count = data.count(b"\n")
    if count > MAX_ROWS:
        raise UploadError(f"{path} has {count:,} lines; at most {MAX_ROWS:,} are taken. Upload its runs one by one.")
    return decode(data).split("\n")


class _Folder:
    """The run of one folder: from its run.json, or only its id from the first measurement."""

    def __init__(self, taken: Records, path: str, record: bytes | None) -> None:
        self._taken = taken
        self.is_unknown = False
        self.run: Run | None = None
        if record is not None:
            try:
                self.run = taken.add_run(strict_json(decode(record)), path)
            except CellError as error:
                raise UploadError(f"{path}: {error}.") from error

    def measurement(self, text: str) -> Measurement:
        """Return the measurement of a line. Raises CellError if it is not one of this run."""
        measurement = measurement_of(strict_json(text))
        if self.run is None:
            self.run = run_of({"run_id": measurement.run_id, "source": "upload"})
            self._taken.runs[self.run.run_id] = self.run
            self.is_unknown = True
        if measurement.run_id != self.run.run_id:
            raise CellError(f"is of run {measurement.run_id!r}, not of {self.run.run_id!r}")
        return measurement


_REQUIRED = ("run_id", "implementation", "metric", "status", "value")
_LEFT_OUT = (
    "A Markdown export leaves out samples, the sizes of rounds and the definition of the sweep: such cells are judged "
    "by their intervals and cannot be run again from Runs. CSV and JSON keep them."
)
_PREFIX = "run_"
_LISTS = tuple(name for name, rules in MEASUREMENT_SCHEMA.items() if rules.kind in LISTS)
_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)
_OF_VIEW = re.compile(r"^- \*\*(\S+)\*\*, [\d,]+ numbers? of this slice$", re.MULTILINE)
_SHOWN = 5  # runs that the refusal of a view names


def _whole(cell: str) -> int:
    if not _WHOLE.fullmatch(cell):
        raise CellError("is not a whole number")
    return int(cell)


def _boolean(cell: str) -> bool:
    if cell not in ("true", "false"):
        raise CellError("is neither true nor false")
    return cell == "true"


# Parsers of a cell by the kind of its field, see results/schema.py.
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "text": unguard,
    "status": unguard,
    "whole": _whole,
    "number": values.number,
    "boolean": _boolean,
    **dict.fromkeys((*LISTS, "object"), values.strict_json),
}
_OF_MARKDOWN = {**PARSERS, "text": unescape, "status": unescape, "texts": lambda cell: unescape(cell).split(", ")}


def _reason_against(sheet: Sheet, *, markdown: bool) -> str | None:
    if (sheet.description == MARKDOWN) != markdown:
        return "It is no Markdown table." if markdown else "It is a Markdown table."
    needed = _REQUIRED[:-1] if markdown else _REQUIRED  # Markdown has no empty columns, so failures alone have no value
    missing = [name for name in needed if name not in sheet.header]
    return f"It lacks the columns {', '.join(missing)}." if missing else None


def _against(upload: Upload, *, markdown: bool) -> str | None:
    return reason_against_file(upload, partial(_reason_against, markdown=markdown))


def _understand(upload: Upload, *, markdown: bool) -> Understanding:
    """Return the rows as runs and measurements."""
    sheet = sheet_of(upload, partial(_reason_against, markdown=markdown))
    reader = _TableReader(Records(upload), sheet.header, _OF_MARKDOWN if markdown else PARSERS)
    for line, row in sheet.rows:
        with reader.taken.part(line, ", ".join(row)):
            reader.read(line, row)
    count = len(reader.taken.runs)
    return reader.taken.understanding(
        (MARKDOWN_TABLE if markdown else CSV).name,
        f"{sheet.description}, {len(sheet.rows):,} rows of {count} run{'s' * (count != 1)}",
        if_empty="has a header and no numbers",
        columns=tuple(Column(name, name if name in reader.known else None) for name in sheet.header),
        assumptions=(_LEFT_OUT,) if markdown else (),
    )


class _TableReader:
    """Reads the rows of a table into runs, measurements and rejections."""

    def __init__(self, taken: Records, header: Sequence[str], parsers: Mapping[str, Callable[[str], Any]]) -> None:
        place = {name: at for at, name in enumerate(header)}
        self.taken = taken
        self._width, self._parsers = len(header), parsers
        self._of_case = {name: place[name] for name in CASE_SCHEMA if name in place}
        self._of_measurement = {name: place[name] for name in MEASUREMENT_SCHEMA if name in place}
        self._of_run = {name: place[_PREFIX + name] for name in RUN_SCHEMA if _PREFIX + name in place}
        self._of_run["run_id"] = place["run_id"]
        used = (*self._of_case.values(), *self._of_measurement.values(), *self._of_run.values())
        self.known = {header[at] for at in used}
        self._run_cells: dict[str, tuple[str, ...]] = {}  # by run, the cells that it was read from
        self._cases: dict[tuple[str, ...], Case] = {}

    def read(self, line: int, row: Sequence[str]) -> None:
        """Take the measurement of one row. Raises CellError or RecordError."""
        if len(row) != self._width:
            raise CellError(f"has {len(row)} cells where the header has {self._width}")
        run = self._run(row)
        self.taken.keep(self._measurement(row), line)
        self.taken.runs.setdefault(run.run_id, run)
        self._run_cells.setdefault(run.run_id, self._cells(row, self._of_run))

    def _run(self, row: Sequence[str]) -> Run:
        known = self.taken.runs.get(unguard(row[self._of_run["run_id"]]) or "")
        if known is None:
            return run_of({"source": "upload"} | self._record(row, self._of_run, RUN_SCHEMA))
        if self._run_cells[known.run_id] != self._cells(row, self._of_run):
            raise CellError(f"says other things of run {known.run_id} than the rows before")
        return known

    def _measurement(self, row: Sequence[str]) -> Measurement:
        record = self._record(row, self._of_measurement, MEASUREMENT_SCHEMA)
        check_metric(record.get("metric"))
        if empty := [name for name in ("run_id", "implementation", "status") if name not in record]:
            raise CellError(f"{empty[0]} is empty")
        record |= {name: tuple(record.get(name) or ()) for name in _LISTS}
        return with_its_samples(Measurement(case=self._case(row), **record))

    def _case(self, row: Sequence[str]) -> Case:
        key = self._cells(row, self._of_case)
        if key not in self._cases:
            self._cases[key] = Case(**dict.fromkeys(CASE_SCHEMA) | self._record(row, self._of_case, CASE_SCHEMA))
        return self._cases[key]

    def _cells(self, row: Sequence[str], places: Mapping[str, int]) -> tuple[str, ...]:
        return tuple(row[at] for at in places.values())

    def _record(self, row: Sequence[str], places: Mapping[str, int], schema: Mapping[str, Field]) -> dict[str, Any]:
        """Return the fields whose cells are not empty, in their types."""
        record: dict[str, Any] = {}
        for name, at in places.items():
            try:
                if row[at]:
                    record[name] = _parsed(schema[name], self._parsers[schema[name].kind](row[at]))
            except CellError as error:
                raise CellFault(name, row[at], str(error)) from error
        return record


def _parsed(rules: Field, value: Any) -> Any:
    if rules.kind != "number" and (reason := fault(rules, value)):  # `values.number` has checked numbers
        raise CellError(reason)
    check_text(rules.name, value)
    return value


def _against_view(upload: Upload) -> str | None:
    return None if upload.kind == "text" and NOT_FOR_IMPORT.encode() in upload.data[:4096] else ""


def _refuse_view(upload: Upload) -> Understanding:
    """Raise UploadError that names the runs to export."""
    runs = _OF_VIEW.findall(decode(upload.data))
    named = " ".join(f"--run {run}" for run in runs[:_SHOWN])
    more = f" and {len(runs) - _SHOWN} more runs" if len(runs) > _SHOWN else ""
    raise UploadError(
        f"{upload.filename} is a view that attnbench rendered for reading: its numbers are rounded, and facts that "
        f"hold for all of them are not in its tables. Upload the export of Runs or of this command on the machine "
        f"where it was made: python -m results export --format csv {named}{more}".rstrip()
    )


# The view comes before `plain_table`, which would take the last table of a view.
_SAID = "a report that attnbench rendered as Markdown, which cannot be taken"
VIEW = Format("attnbench_report", _SAID, _against_view, _refuse_view)
CSV, MARKDOWN_TABLE = (
    Format(name, f"the {what} that attnbench exports, with any number of runs", against, read)
    for name, what, against, read in (
        ("own_csv", "CSV", partial(_against, markdown=False), partial(_understand, markdown=False)),
        ("own_markdown", "Markdown table", partial(_against, markdown=True), partial(_understand, markdown=True)),
    )
)
EXPORT = Format("own_json", "the JSON that attnbench exports, with any number of runs", _against_export, _export)
FOLDERS = Format(
    "run_folder", f"a run folder as .zip, .tar or .tar.gz, or its {_JOURNAL} alone", _against_folder, _folders
)
