"""What the importers of this folder share: rows read cell by cell, numbers gathered into runs, faults kept.

A fault of a row is a CellError inside `Collected.row`; it becomes a Rejection with the line and leaves the rest alone.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError, wall
from results.formats.tables import MAX_BYTES, MAX_ROWS, Sheet
from results.formats.upload import Column, Rejection, Understanding, Upload
from results.formats.validation import check_text, with_its_samples
from results.levels import bytes_moved, flops
from results.metrics import METRICS
from results.records import CASE_SCHEMA, Case, Measurement, RecordError, Run, Status
from results.schema import LARGEST_WHOLE, magnitude_fits

MAX_RUNS = 100
MAX_NOTE = 500
_SHOWN = 80  # characters of a refused value
_AGREES = 1.1  # a printed rate over the one that the time gives, at most
_RATIOS = {"speedup": "latency_ms", "memory_reduction": "peak_memory_mb"}  # of which numbers
_NOT_FINITE = ("inf", "-inf", "+inf", "nan", "infinity", "-infinity")
_FAILURES = (  # in this order: the first that the text contains
    (Status.OOM, ("out of memory", "outofmemory", "cuda oom", "cuda_oom")),
    (Status.OUT_OF_RESOURCES, ("out of resource", "outofresources", "shared memory, required")),
    (Status.TIMEOUT, ("timeout", "timed out")),
    (Status.UNSUPPORTED, ("not_supported", "notsupported", "not support", "unsupported", "skipped", "notimplemented")),
)
_NUMBERS = ("value", "mean", "std", "p20", "p80")  # of a measurement
_TELLING = re.compile(r"\w*(?:Error|Exception)\b|NOT_SUPPORTED|out of memory|SKIPPED|[Tt]ime(?:d )?out")


class CellFault(CellError):
    """A cell that is not taken, with its column and text."""

    def __init__(self, column: str, text: str, reason: str) -> None:
        super().__init__(reason)
        self.column, self.text = column, text


@dataclass(frozen=True)
class Cells:
    """One row of a table, by column name. A column that the table lacks reads as an empty cell."""

    row: Sequence[str]
    places: Mapping[str, int]

    def text(self, name: str) -> str:
        """Return the cell without blanks around it."""
        return self.row[self.places[name]].strip() if name in self.places else ""

    def read(self, name: str, parse: Callable[[str], Any]) -> Any:
        """Return the parsed cell, None if it is empty. Raises CellFault."""
        text = self.text(name)
        if not text:
            return None
        try:
            return parse(text)
        except CellError as error:
            raise CellFault(name, text, str(error)) from error

    def need(self, name: str, parse: Callable[[str], Any]) -> Any:
        """Return the parsed cell. Raises CellFault also if it is empty."""
        value = self.read(name, parse)
        if value is None:
            raise CellFault(name, "", "is empty")
        return value


@dataclass
class Collected:
    """Runs, measurements and faults of one upload, as they are found."""

    upload: Upload
    format: str
    unit: str = "line"  # what a row's number counts; in a JSON document, entries
    runs: dict[Hashable, Run] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    disagreeing: Counter[str] = field(default_factory=Counter)  # printed rates and ratios that the times do not give
    left_out: Counter[str] = field(default_factory=Counter)  # what, and how many rows of it
    _lines: dict[tuple[Any, ...], int] = field(default_factory=dict)  # where each number was taken from
    _of_row: list[tuple[Any, ...]] = field(default_factory=list)  # keys of the numbers of the row at hand

    def run(self, key: Hashable, *, title: str = "", **said: str | None) -> str:
        """Return the id of the run of that key, made at first use with the texts that the file says of it."""
        if key not in self.runs:
            if len(self.runs) >= MAX_RUNS:
                raise CellError(f"is of one run more than the {MAX_RUNS} that a file may have")
            number = len(self.runs) + 1
            name = f"{self.upload.filename[:120]}{title and ', '}{title}"[: values.MAX_TEXT]
            values.words(name)
            for text in said.values():
                values.name(text or "")
            run_id = self.upload.run_id if number == 1 else f"{self.upload.run_id}-{number}"
            self.runs[key] = Run(run_id=run_id, source="upload", title=name, **said)
        return self.runs[key].run_id

    @contextmanager
    def row(self, line: int, text: str = "") -> Iterator[None]:
        """Keep what the row is refused for; nothing of a refused row is taken."""
        self._of_row.clear()
        with wall(f"{self.upload.filename}, {self.unit} {line},"):
            try:
                yield
            except CellFault as fault:
                self._refuse(line, fault.column, fault.text, str(fault))
            except (CellError, RecordError) as error:
                self._refuse(line, "", text, str(error).rstrip("."))

    def add(self, line: int, column: str, *, case: Case, implementation: str, metric: str, **rest: Any) -> None:
        """Take one number (`value`) or failure (`status`). Raises CellError if the same one was taken before."""
        origin = f"{self.unit} {line}, {column}"
        for said in (origin, *(rest.get(name) for name in ("printed", "note", "config"))):
            _check_text(column, said)
        for number in (*(rest.get(name) for name in _NUMBERS), *rest.get("samples", ())):
            if number is not None and not magnitude_fits(number):
                raise CellFault(column, repr(number), "is not a number that can be stored")
        for name, said in (("subject", case.subject), ("baseline", rest.get("baseline")), ("time", rest.get("time"))):
            if said is not None:
                check_text(name, said)
        for name, rules in CASE_SCHEMA.items():
            if rules.kind == "whole" and (getattr(case, name) or 0) > rules.largest:
                raise CellFault(name, str(getattr(case, name)), "is too large")
        status = rest.setdefault("status", Status.OK)
        if status is not Status.OK:
            rest |= dict.fromkeys(("value", "mean", "std", "p20", "p80", "statistic"))
        name = values.name(implementation)
        m = with_its_samples(Measurement(case=case, implementation=name, metric=metric, origin=origin, **rest))
        key = (m.run_id, m.case, m.implementation, m.mode, m.timing, m.metric, m.baseline)
        if key in self._lines:
            raise CellFault(
                column, m.printed or "", f"repeats line {self._lines[key]}: the same case and implementation"
            )
        self._lines[key] = line
        self._of_row.append(key)
        self.measurements.append(m)

    def add_rate(self, line: int, column: str, *, latency_ms: float, metric: str, value: float, **known: Any) -> None:
        """Take a `tflops` or `gb_per_s` as printed. Where the time gives another, by more than a tenth, it is noted."""
        work = {"tflops": flops, "gb_per_s": bytes_moved}[metric](known["case"], known["mode"])
        derived = work and work / latency_ms / {"tflops": 1e9, "gb_per_s": 1e6}[metric]
        if derived and not 1 / _AGREES <= value / derived <= _AGREES:
            self.disagreeing[metric] += 1
            said = f"as printed; the time gives {derived:.4g} {METRICS[metric].unit}"
            known["note"] = f"{said}; {known['note']}" if known.get("note") else said
        self.add(line, column, metric=metric, value=value, statistic="printed", **known)

    def understanding(
        self,
        description: str,
        *,
        columns: Sequence[Column] = (),
        assumptions: Sequence[str] = (),
        questions: Sequence[str] = (),
    ) -> Understanding:
        """Return all of it. Raises UploadError if there is nothing to take and nothing was refused."""
        self._note_wrong_ratios()
        lines = [f"{count:,} {what}." for what, count in self.left_out.items()]
        if not self.measurements and not self.rejected:
            raise UploadError(
                " ".join([f"{self.upload.filename} has no numbers to take.", *(f"Left out: {line}" for line in lines)])
            )
        used = {measurement.run_id for measurement in self.measurements}
        runs = tuple(run for run in self.runs.values() if run.run_id in used)
        asked = () if all(run.gpu_name for run in runs) else ("The file does not name a GPU. Which one was it?",)
        return Understanding(
            upload=self.upload,
            format=self.format,
            description=description,
            runs=runs,
            measurements=tuple(self.measurements),
            columns=tuple(columns),
            rejected=tuple(self.rejected),
            assumptions=(*assumptions, *self._disagreements()),
            left_out=tuple(lines),
            questions=(*asked, *questions),
        )

    def _note_wrong_ratios(self) -> None:
        """Note the printed ratios that differ by more than a tenth from what the numbers of the file give."""
        numbers = {
            (m.run_id, m.case, m.mode, m.metric, m.implementation): m.value for m in self.measurements if m.value
        }
        for at, m in enumerate(self.measurements):
            of = _RATIOS.get(m.metric)
            pair = [numbers.get((m.run_id, m.case, m.mode, of, name)) for name in (m.baseline, m.implementation)]
            if m.value and None not in pair and not 1 / _AGREES <= m.value * pair[1] / pair[0] <= _AGREES:
                self.disagreeing[m.metric] += 1
                note = f"as printed; the numbers give {pair[0] / pair[1]:.4g}"
                self.measurements[at] = replace(m, note=f"{note}. {m.note}" if m.note else note)

    def _disagreements(self) -> Iterator[str]:
        for metric, count in self.disagreeing.items():
            label = METRICS[metric].label
            yield f"{count:,} printed values of {label} differ by over a tenth from what the numbers give: noted."

    def _refuse(self, line: int, column: str, value: str, reason: str) -> None:
        for key in self._of_row:
            del self._lines[key]
        del self.measurements[len(self.measurements) - len(self._of_row) :]
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
        self.rejected.append(Rejection(line, column, shown, reason))


def sheet_with(upload: Upload, required: Sequence[str]) -> Sheet | None:
    """Return the file's one table if it has these columns, None otherwise. Nothing is raised: another may read it."""
    if upload.kind != "text" or not all(name.encode() in upload.data for name in required):
        return None
    try:
        sheets = upload.sheets
    except (UploadError, csv.Error):
        return None
    fitting = [sheet for sheet in sheets if set(required) <= set(sheet.header)]
    return fitting[0] if len(fitting) == 1 else None


def lacking(upload: Upload, required: Sequence[str]) -> str | None:
    """Return None if `sheet_with` finds the table, which columns it lacks if it has most of them, "" otherwise."""
    if sheet_with(upload, required) is not None:
        return None
    if upload.kind != "text" or sum(name.encode() in upload.data for name in required) * 2 < len(required):
        return ""
    try:
        headers = [set(sheet.header) for sheet in upload.sheets]
    except (UploadError, csv.Error):
        return ""
    closest = max(headers, key=lambda header: len(header & set(required)))
    missing = [name for name in required if name not in closest]
    if not missing or len(missing) * 2 > len(required):
        return ""
    return f"It lacks the columns {', '.join(missing)}."


def document(upload: Upload, *markers: str) -> Any:
    """Return what a JSON file says if all markers are in its text; None otherwise. NaN and Infinity become floats."""
    data = upload.data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if data[:1] not in (b"{", b"[") or len(data) > MAX_BYTES or not all(mark.encode() in data for mark in markers):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def json_lines(upload: Upload, *markers: str) -> list[tuple[int, Any]] | None:
    """Return the objects of a file with one JSON object a line, with their lines; None if it is no such file.

    A line that is no object stands there as None.
    """
    data = upload.data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if data[:1] != b"{" or len(data) > MAX_BYTES or not all(mark.encode() in data for mark in markers):
        return None
    if data.count(b"\n") + data.count(b"\r") > MAX_ROWS:
        return None
    lines = data.splitlines()
    if _object(lines[0]) is None:
        return None
    return [(number, _object(line)) for number, line in enumerate(lines, start=1) if line.strip()]


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Return an object of a JSON document. Raises CellFault."""
    if not isinstance(value, dict):
        raise CellFault(name, _repr(value), "is not an object")
    return value


def whole(value: Any, name: str, minimum: int = 1) -> int:
    """Return a whole number of a JSON document. Raises CellFault."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= LARGEST_WHOLE:
        raise CellFault(name, _repr(value), f"is not a whole number from {minimum} to {LARGEST_WHOLE}")
    return value


def text(value: Any, name: str) -> str:
    """Return a name of a JSON document. Raises CellFault."""
    if not isinstance(value, str) or not value.strip():
        raise CellFault(name, _repr(value), "is not a name")
    try:
        return values.words(value.strip())
    except CellError as error:
        raise CellFault(name, value, str(error)) from error


def _check_text(column: str, said: str | None) -> None:
    """Raise CellFault if a text that is kept has a control character or is too long."""
    for at in range(0, min(len(said or ""), MAX_NOTE), values.MAX_TEXT):
        try:
            values.words((said or "")[at : at + values.MAX_TEXT])
        except CellError as error:
            raise CellFault(column, said or "", str(error)) from error
    if said and len(said) > MAX_NOTE:
        raise CellFault(column, said, f"has {len(said)} characters; at most {MAX_NOTE} are taken")


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _repr(value: Any) -> str:
    try:
        return repr(value)[:_SHOWN]
    except ValueError:  # a whole number of more digits than Python prints
        return "a very large number"


def places_of(header: Sequence[str]) -> dict[str, int]:
    """Return where each column stands; of columns of one name, the first."""
    places: dict[str, int] = {}
    for at, name in enumerate(header):
        places.setdefault(name, at)
    return places


def rows_of(collected: Collected, sheet: Sheet) -> Iterator[tuple[int, Cells]]:
    """Yield the rows that are as wide as the header, with their lines; the others are refused."""
    places = places_of(sheet.header)
    for line, row in sheet.rows:
        if len(row) == len(sheet.header):
            yield line, Cells(row, places)
            continue
        with collected.row(line, ", ".join(row)):
            raise CellError(f"has {len(row)} cells where the header has {len(sheet.header)}")


def only(rows: Sequence[tuple[int, Cells]], column: str) -> str:
    """Return the text that a column has wherever it has one; "" if that is not one text."""
    texts = {text for _, cells in rows if (text := cells.text(column))}
    return texts.pop() if len(texts) == 1 else ""


def columns_of(sheet: Sheet, meanings: Mapping[str, str]) -> tuple[Column, ...]:
    """Return each header and what it is read as."""
    return tuple(Column(name, meanings.get(name)) for name in sheet.header)


def failure_of(text: str) -> Status:
    """Return the status that an error message stands for."""
    lowered = text.lower()
    for status, signs in _FAILURES:
        if any(sign in lowered for sign in signs):
            return status
    return Status.ERROR


def telling_line(text: str) -> str:
    """Return the line of a message or traceback that says most, printable and bounded."""
    lines = [line for raw in text.splitlines() if (line := "".join(c for c in raw if c.isprintable()).strip())]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["no reason given"])[-1][:MAX_NOTE]


def not_finite(text: str) -> bool:
    """Return whether a cell says inf or nan in place of a number."""
    return text.strip().lower() in _NOT_FINITE


def positive(text: str) -> float:
    """Return a number above 0. Raises CellError."""
    return values.number(text, above=0)


def checked(value: Any, name: str) -> float:
    """Return a number of a JSON document that is above 0 and that the store takes. Raises CellFault."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CellFault(name, _repr(value), "is not a number")
    if not (value > 0 and magnitude_fits(value)):
        raise CellFault(name, _repr(value), "is not a number above 0 that can be stored")
    return float(value)
