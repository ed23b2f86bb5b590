"""An upload, the format that reads it, and its contents before anything is written."""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from results.formats.archives import ZIP
from results.formats.errors import CellError, CellFault, UploadError, wall
from results.formats.mapping import TableMapping, key_of, refuse_duplicates
from results.formats.tables import Sheet, read_sheets
from results.formats.workbook import is_workbook, read_workbook
from results.records import Measurement, RecordError, Run

_SHOWN = 80  # characters of a refused value


@dataclass(frozen=True)
class Upload:
    """The uploaded file."""

    filename: str
    data: bytes
    mappings: Mapping[str, TableMapping] = field(default_factory=dict)  # corrected by the user, by key of the header

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the bytes; the same file always becomes the same run."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def sheets(self) -> list[Sheet]:
        """Return the file's tables as text. Raises UploadError if it has none."""
        if self.kind == "a workbook":
            return read_workbook(self.filename, self.data)
        return read_sheets(self.filename, self.data)

    def mapping_of(self, sheet: Sheet) -> TableMapping | None:
        """Return the user's assignment of the columns of tables with this header, if there is one."""
        chosen = self.mappings.get(key_of(sheet.header))
        return chosen if chosen and len(chosen.roles) == len(sheet.header) else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached tables, which can be read again and would double the size of a cached upload."""
        return {"filename": self.filename, "data": self.data, "mappings": self.mappings}

    @cached_property
    def kind(self) -> str:
        """Return the kind by the first bytes: a workbook, a zip or tar archive, a Parquet file, JSON or text."""
        if self.data[:4] == ZIP:
            return "a workbook" if is_workbook(self.data) else "a zip archive"
        if self.data[:2] == b"\x1f\x8b" or self.data[257:262] == b"ustar":
            return "a tar archive"
        if self.data[:4] == b"PAR1":
            return "a Parquet file"
        return "JSON" if self.data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" else "text"

    @property
    def run_id(self) -> str:
        """Return the id of the run that the file becomes if it names none."""
        return f"upload-{self.sha256[:12]}"


@dataclass(frozen=True)
class Rejection:
    """A refused cell or row with the reason."""

    line: int  # counted from 1
    column: str  # "" for a whole row
    value: str
    reason: str


@dataclass(frozen=True)
class Column:
    """A column of the file and its meaning."""

    header: str
    meaning: str | None  # None: ignored


@dataclass(frozen=True)
class Understanding:
    """The contents of a file, shown before the import."""

    upload: Upload
    format: str  # name of the format
    description: str
    runs: tuple[Run, ...]
    measurements: tuple[Measurement, ...]
    columns: tuple[Column, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    assumptions: tuple[str, ...] = ()  # how ambiguous contents were read
    left_out: tuple[str, ...] = ()  # descriptions of unusable contents, with counts
    questions: tuple[str, ...] = ()  # facts missing in the file that the user may know
    sheet: Sheet | None = None  # the plain table, so that the user can reassign its columns
    mapping: TableMapping | None = None  # the assignment of its columns

    @property
    def sha256(self) -> str:
        """Return the hash of the file."""
        return self.upload.sha256

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the headers of columns that are not used."""
        return tuple(column.header for column in self.columns if column.meaning is None)


@dataclass
class Taken:
    """The numbers of an upload while it is read: each once, with a rejection for each faulty cell or row."""

    by_origin: ClassVar[bool] = False  # whether numbers from different places of a source are different ones
    upload: Upload
    runs: dict[Hashable, Run] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    lines: dict[tuple[Any, ...], int] = field(default_factory=dict)  # the line of each number

    def reject(self, line: int, column: str, value: str, reason: str) -> None:
        """Keep a fault."""
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
        self.rejected.append(Rejection(line, column, shown, reason))

    @contextmanager
    def part(self, line: int, text: str, column: str = "", where: str = "") -> Iterator[None]:
        """Turn an error of a row or a cell into a rejection, and leave out what was taken of it.

        `where` is the place if it is no line of the file.
        """
        before = len(self.measurements)
        with wall(where or f"{self.upload.filename}, line {line},"):
            try:
                yield
            except (CellError, RecordError) as error:
                for measurement in self.measurements[before:]:
                    del self.lines[self._key(measurement)]
                del self.measurements[before:]
                at = (error.column, error.text) if isinstance(error, CellFault) else (column, text)
                self.reject(line, *at, str(error).rstrip("."))

    def repeated(self, measurement: Measurement) -> str | None:
        """Return why a number is not taken again; None for a new one."""
        first = self.lines.get(self._key(measurement))
        same = "" if self.by_origin else ": the same case, implementation and mode"
        return None if first is None else f"repeats line {first}{same}"

    def keep(self, measurement: Measurement, line: int) -> None:
        """Take a number. Raises CellError if it was taken before."""
        if reason := self.repeated(measurement):
            raise CellError(reason)
        self.lines[self._key(measurement)] = line
        self.measurements.append(measurement)

    def _key(self, measurement: Measurement) -> tuple[Any, ...]:
        return measurement.key if self.by_origin else measurement.key[:-1]

    def understanding(self, format: str, description: str, *, if_empty: str, **more: Any) -> Understanding:
        """Return everything taken. Raises UploadError if there is nothing to take and nothing was refused."""
        if not self.measurements and not self.rejected:
            raise UploadError(f"{self.upload.filename} {if_empty}.")
        used = {measurement.run_id for measurement in self.measurements}
        runs = tuple(run for run in self.runs.values() if run.run_id in used)
        found: dict[str, Any] = {
            "runs": runs,
            "measurements": tuple(self.measurements),
            "rejected": tuple(self.rejected),
        }
        return Understanding(upload=self.upload, format=format, description=description, **found, **more)


class Format(NamedTuple):
    """A kind of file: why an upload is not one (None if it is), and how it is understood."""

    name: str
    description: str
    reason_against: Callable[[Upload], str | None]
    understand: Callable[[Upload], Understanding]


SheetRule = Callable[[Sheet], str | None]  # the reason against reading a sheet in a format; None if it fits


def reason_against_file(upload: Upload, reason_against: SheetRule) -> str | None:
    """Return why none of the file's tables fits; None if one does. Raises UploadError if it cannot be read."""
    if upload.kind not in ("text", "a workbook"):
        return f"It is {upload.kind}, not a table."
    reasons = [reason_against(sheet) for sheet in upload.sheets]
    if None in reasons:
        return None
    widest = max(range(len(reasons)), key=lambda at: len(upload.sheets[at].header))
    return reasons[widest]


def sheet_of(upload: Upload, reason_against: SheetRule) -> Sheet:
    """Return the one table that fits. Raises UploadError if several tables fit or if two columns have the same name."""
    fitting = [sheet for sheet in upload.sheets if reason_against(sheet) is None]
    if len(fitting) != 1:
        raise UploadError(f"{upload.filename} has {len(fitting)} tables that could be meant; upload them one by one.")
    refuse_duplicates(fitting[0].header)
    return fitting[0]
