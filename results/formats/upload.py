"""An upload, and what was understood of it before anything is written."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from results.formats.sheet import Sheet, read_sheets
from results.records import Measurement, Run


@dataclass(frozen=True)
class Upload:
    """The file as it came."""

    filename: str
    data: bytes

    @cached_property
    def sha256(self) -> str:
        """Of the bytes; the same file always becomes the same run."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def sheets(self) -> list[Sheet]:
        """Its tables as text. Raises UploadError if it has none."""
        return read_sheets(self.filename, self.data)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again, so that a cached upload is not twice as large."""
        return {"filename": self.filename, "data": self.data}

    @cached_property
    def kind(self) -> str:
        """What the first bytes say: a zip archive, a tar archive, JSON or text."""
        if self.data[:4] == b"PK\x03\x04":
            return "a zip archive"
        if self.data[:2] == b"\x1f\x8b" or self.data[257:262] == b"ustar":
            return "a tar archive"
        return "JSON" if self.data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" else "text"

    @property
    def run_id(self) -> str:
        """Of the run that a file without one of its own becomes."""
        return f"upload-{self.sha256[:12]}"


@dataclass(frozen=True)
class Rejection:
    """A cell or row that is not taken, and why."""

    line: int  # counted from 1
    column: str  # "" for a whole row
    value: str
    reason: str


@dataclass(frozen=True)
class Column:
    """A column of the file and what it is read as."""

    header: str
    meaning: str | None  # None: ignored


@dataclass(frozen=True)
class Understanding:
    """What would be imported, for somebody to look at first."""

    upload: Upload
    format: str  # name of the format
    description: str
    runs: tuple[Run, ...]
    measurements: tuple[Measurement, ...]
    columns: tuple[Column, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    assumptions: tuple[str, ...] = ()  # how what the file leaves open was read
    questions: tuple[str, ...] = ()  # what the file does not say and somebody may know

    @property
    def sha256(self) -> str:
        """Of the file."""
        return self.upload.sha256

    @property
    def ignored(self) -> tuple[str, ...]:
        """Headers of columns that are not used."""
        return tuple(column.header for column in self.columns if column.meaning is None)
