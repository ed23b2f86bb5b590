"""Records that attnbench wrote as JSON: an export {"runs": [...], "measurements": [...]}, or run folders.

A run folder comes as its journal or compressed columns alone, or as a .zip, .tar or .tar.gz of one or more folders.
Nothing of an archive is written to disk under its own name: only three file names are read, in bounded sizes.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from results.formats.archives import COLUMNS, JOURNAL, as_journal, members
from results.formats.errors import CellError, CellFault, UploadError, wall
from results.formats.tables import MAX_ROWS, check_size, decode
from results.formats.upload import Format, Taken, Understanding, Upload
from results.formats.validation import measurement_of, run_of
from results.formats.values import strict_json
from results.records import Measurement, Run

_RUN, _JOURNAL = "run.json", JOURNAL


class Records(Taken):
    """Records that attnbench wrote; two numbers from different places of a source are two."""

    def take(self, line: int, column: str, text: str, read: Callable[[], Measurement]) -> Measurement | None:
        """Take the measurement that `read` returns; None if it raises CellError or repeats another one."""
        try:
            measurement = read()
            if measurement.key in self.lines:
                raise CellError(f"repeats line {self.lines[measurement.key]}")
        except CellFault as fault:
            self.reject(line, fault.column, fault.text, str(fault))
            return None
        except CellError as error:
            self.reject(line, column, text, str(error))
            return None
        self.lines[measurement.key] = line
        self.measurements.append(measurement)
        return measurement

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
        with wall(f"{upload.filename}, measurement {number},"):
            taken.take(number, "measurements", json.dumps(record), partial(_of_one, record, taken))
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
                with wall(f"{path}, line {line},"):
                    taken.take(line, path, text, partial(folder.measurement, text))
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


EXPORT = Format("own_json", "the JSON that attnbench exports, with any number of runs", _against_export, _export)
FOLDERS = Format(
    "run_folder", f"a run folder as .zip, .tar or .tar.gz, or its {_JOURNAL} alone", _against_folder, _folders
)
