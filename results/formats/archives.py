"""Wanted files out of an untrusted archive, into memory and in bounded sizes; nothing is extracted to disk."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Set
from pathlib import PurePosixPath
from typing import IO

from results.formats.errors import UploadError

MAX_MEMBERS = 10_000
MAX_UNPACKED = 256 * 1024 * 1024  # of all wanted files together; of a tar stream, of everything in it
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"

_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, gzip.BadGzipFile)


def members(data: bytes, wanted: Set[str]) -> dict[str, bytes]:
    """The files of these names, by their path in the archive.

    Raises UploadError if the archive is damaged, encrypted, unpacks to too much or has too many files.
    """
    try:
        return _of_zip(data, wanted) if data[:4] == ZIP else _of_tar(data, wanted)
    except _BROKEN as error:
        raise UploadError(f"The archive cannot be read: {error}. Make it anew and try again.") from error


def _of_zip(data: bytes, wanted: Set[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        _check_count(len(entries))
        left = MAX_UNPACKED
        for entry in entries:
            if entry.is_dir() or PurePosixPath(entry.filename).name not in wanted:
                continue
            if entry.flag_bits & 1:
                raise UploadError(f"{entry.filename!r} is encrypted; make the archive without a password.")
            with archive.open(entry) as file:
                left -= _take(found, entry.filename, file, left)
    return found


def _of_tar(data: bytes, wanted: Set[str]) -> dict[str, bytes]:
    raw: IO[bytes] = io.BytesIO(data)
    stream = _Bounded(gzip.GzipFile(fileobj=raw) if data[:2] == GZIP else raw)
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, entry in enumerate(archive, start=1):
            _check_count(count)
            if entry.isfile() and PurePosixPath(entry.name).name in wanted:
                file = archive.extractfile(entry)
                if file is not None:
                    _take(found, entry.name, file, MAX_UNPACKED)
    return found


def _take(found: dict[str, bytes], path: str, file: IO[bytes], left: int) -> int:
    if path in found:
        raise UploadError(f"{path!r} is in the archive twice.")
    content = file.read(left + 1)
    if len(content) > left:
        raise _too_large()
    found[path] = content
    return len(content)


def _check_count(count: int) -> None:
    if count > MAX_MEMBERS:
        raise UploadError(f"The archive has more than {MAX_MEMBERS:,} files; pack the run folders only.")


def _too_large() -> UploadError:
    return UploadError(f"The archive unpacks to more than {MAX_UNPACKED:,} bytes; upload the runs one by one.")


class _Bounded(io.RawIOBase):
    """A stream that ends in an UploadError after too much, so that a bomb costs no more than that."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._left = MAX_UNPACKED

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size if size >= 0 else self._left + 1)
        self._left -= len(chunk)
        if self._left < 0:
            raise _too_large()
        return chunk
