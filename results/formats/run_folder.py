"""A run folder from another machine: its measurements alone, or a .zip, .tar or .tar.gz of one or more folders.

Nothing of an archive is ever written to disk under its own name: three file names are read, in bounded sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from results.formats.archives import COLUMNS, JOURNAL, as_journal, members
from results.formats.errors import CellError, UploadError, wall
from results.formats.tables import MAX_ROWS, check_size, decode
from results.formats.upload import Rejection, Understanding, Upload
from results.formats.validation import measurement_of, run_of
from results.formats.values import strict_json
from results.records import Measurement, Run

NAME = "run_folder"
DESCRIPTION = "a run folder as .zip, .tar or .tar.gz, or its measurements.jsonl or measurements.parquet alone"

_RUN, _JOURNAL = "run.json", JOURNAL


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    if upload.kind in ("a zip archive", "a tar archive") or _is_journal(upload) or _is_columns(upload):
        return None
    return f"It is neither an archive nor a file of JSON lines such as {_JOURNAL}."


def understand(upload: Upload) -> Understanding:
    """Return the runs and measurements of the folders in the file."""
    check_size(upload.data)
    if _is_journal(upload) or _is_columns(upload):
        files = {COLUMNS if _is_columns(upload) else _JOURNAL: upload.data}
    else:
        files = members(upload.data, {_RUN, _JOURNAL, COLUMNS})
    files = dict(as_journal(*file) for file in files.items())
    reader = _FolderReader()
    for path in sorted(files):
        if PurePosixPath(path).name == _JOURNAL:
            reader.folder(path, files)
    if not reader.measurements and not reader.rejected:
        raise UploadError(f"{upload.filename} holds no {_JOURNAL} with numbers in it.")
    return Understanding(
        upload=upload,
        format=NAME,
        description=f"{len(reader.runs)} run folders, {len(reader.measurements):,} measurements",
        runs=tuple(reader.runs.values()),
        measurements=tuple(reader.measurements),
        rejected=tuple(reader.rejected),
        assumptions=tuple(reader.assumptions),
        questions=tuple(reader.questions),
    )


def _is_journal(upload: Upload) -> bool:
    return upload.kind == "JSON" and upload.filename.lower().endswith(".jsonl")


def _is_columns(upload: Upload) -> bool:
    return upload.kind == "a Parquet file"


class _FolderReader:
    """What has been read of run folders: runs, measurements, and the lines that were not taken."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.measurements: list[Measurement] = []
        self.rejected: list[Rejection] = []
        self.assumptions: list[str] = []
        self.questions: list[str] = []
        self._lines: dict[str, int] = {}

    def folder(self, path: str, files: dict[str, bytes]) -> None:
        """Read one journal and, if it lies beside, its run.json."""
        beside = str(PurePosixPath(path).with_name(_RUN))
        run = _run(beside, files[beside]) if beside in files else None
        if run and run.run_id in self.runs:
            raise UploadError(f"Run {run.run_id} is in the file twice.")
        found: list[Measurement] = []
        for line, text in self._complete_lines(path, files[path]):
            try:
                with wall(f"{path}, line {line},"):
                    measurement = measurement_of(strict_json(text))
                    run = run or self._unknown_run(measurement.run_id)
                    if measurement.run_id != run.run_id:
                        raise CellError(f"is of run {measurement.run_id!r}, not of {run.run_id!r}")
            except CellError as error:
                self.rejected.append(Rejection(line, path, text[:80], str(error)))
                continue
            first = self._lines.setdefault(measurement.measurement_id, line)
            if first != line:
                self.rejected.append(Rejection(line, path, text[:80], f"repeats line {first}"))
                continue
            found.append(measurement)
        if run and found:
            self.runs[run.run_id] = run
            self.measurements += found

    def _unknown_run(self, run_id: str) -> Run:
        self.questions.append(f"There is no {_RUN}, so nothing is known of run {run_id}. Which GPU was it?")
        return run_of({"run_id": run_id, "source": "upload"})

    def _complete_lines(self, path: str, data: bytes) -> Iterator[tuple[int, str]]:
        count = data.count(b"\n")
        if count > MAX_ROWS:
            raise UploadError(
                f"{path} has {count:,} lines; at most {MAX_ROWS:,} are taken. Upload its runs one by one."
            )
        lines = decode(data).split("\n")
        if lines[-1].strip():
            self.assumptions.append(f"The last line of {path} is cut off and left out.")
        return ((number, line) for number, line in enumerate(lines[:-1], start=1) if line.strip())


def _run(path: str, data: bytes) -> Run:
    try:
        return run_of(strict_json(decode(data)))
    except CellError as error:
        raise UploadError(f"{path}: {error}.") from error
