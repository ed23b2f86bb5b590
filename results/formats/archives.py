"""Run folders as archives: wanted files are read into memory in bounded sizes, and single files are zipped.

Archives are not trusted, so nothing is extracted to disk. If a run's record and journal are uploaded as two files, they
are combined again.
"""

import gzip
import io
import json
import lzma
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence, Set
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any

from results.files import columns
from results.formats.errors import UploadError
from results.formats.tables import MAX_ROWS

Files = Sequence[tuple[str, bytes]]  # name and content

MAX_MEMBERS = 10_000
MAX_TABLES = 100  # files of a zip that is no run folder
MAX_UNPACKED = 256 * 1024 * 1024  # bytes: the wanted files together; for a tar, all files
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"

COLUMNS, JOURNAL = columns.NAME, "measurements.jsonl"
_OF_RUNS = {"run.json", JOURNAL, COLUMNS}
_WORKBOOK = "xl/workbook.xml"
_OTHERS = ("state.json", "log.txt", "run.lock", "cancel")  # files of a run folder without numbers
BROKEN = (  # exceptions of damaged or crafted archives: a negative seek, a password, an unknown compression
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError,
    ValueError, IndexError, OverflowError, RuntimeError, MemoryError, AssertionError,
)  # fmt: skip


def members(data: bytes, wanted: Set[str]) -> dict[str, bytes]:
    """Return the files of these names, by their path in the archive.

    Raises UploadError if the archive is damaged, encrypted, unpacks to too much or has too many files.
    """
    try:
        return _of_zip(data, wanted) if data[:4] == ZIP else _of_tar(data, wanted)
    except UploadError:
        raise
    except BROKEN as error:
        raise UploadError(f"The archive cannot be read: {error}. Create it again and retry.") from error


def opened(files: Files) -> list[tuple[str, bytes]]:
    """Return the files to read: those inside of archives that are no run folders, and each run as one file.

    Names of files inside combine both. Raises UploadError if such an archive is damaged or unpacks to too much.
    """
    found: list[Any] = []
    for name, data in files:
        inside = _tables_of(name, data) if data[:4] == ZIP else None
        found += [(name, data)] if inside is None else inside
    return bundled(found)


def as_journal(name: str, data: bytes) -> tuple[str, bytes]:
    """Return a file, with the journal lines of a run in place of its compressed columns.

    Raises UploadError if the columns cannot be read or hold too much.
    """
    if PurePosixPath(name).name != COLUMNS:
        return name, data
    try:
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            file.write(data)
            file.flush()
            rows, unpacked = columns.size(Path(file.name))
            if rows > MAX_ROWS or unpacked > MAX_UNPACKED:
                raise UploadError(
                    f"{name} holds {rows:,} rows; at most {MAX_ROWS:,} are taken. Upload runs one by one."
                )
            lines = [json.dumps(record) + "\n" for record in columns.read(Path(file.name))]
    except columns.ColumnsError as error:
        raise UploadError(f"{name} cannot be read: {error}") from error
    return str(PurePosixPath(name).with_name(JOURNAL)), "".join(lines).encode()


def bundled(files: Files) -> list[tuple[str, bytes]]:
    """Return the files, each pair of run.json and measurements of one run as one archive under the run's name."""
    files = [as_journal(*file) for file in files]
    records, journals = {}, {}
    for at, (name, data) in enumerate(files):
        if PurePath(name).name.lower() == "run.json" and (run_id := _run_id(data)):
            records[run_id] = at
        if name.lower().endswith(".jsonl") and (run_id := _run_id(data.split(b"\n", 1)[0])):
            journals[run_id] = at
    pairs = {run_id: (records[run_id], journals[run_id]) for run_id in records if run_id in journals}
    if not pairs:
        return list(files)
    taken = {at for pair in pairs.values() for at in pair}
    rest = [file for at, file in enumerate(files) if at not in taken and PurePath(file[0]).name.lower() not in _OTHERS]
    return [*((f"{name}.zip", _zip(files[a][1], files[b][1])) for name, (a, b) in pairs.items()), *rest]


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


def _tables_of(name: str, data: bytes) -> Files | None:
    """Return the files of a zip; None if it is a run folder, a workbook or one file that a reader refuses in words."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    except BROKEN:
        return None
    if not names or {PurePosixPath(path).name for path in names} & _OF_RUNS or _WORKBOOK in names:
        return None
    wanted = {PurePosixPath(path).name for path in names if not PurePosixPath(path).name.startswith(".")}
    found = members(data, wanted)
    if len(found) > MAX_TABLES:
        raise UploadError(f"{name} has {len(found)} files; at most {MAX_TABLES} are taken at once.")
    return [(f"{PurePath(name).stem}-{PurePosixPath(path).name}", content) for path, content in sorted(found.items())]


def _of_tar(data: bytes, wanted: Set[str]) -> dict[str, bytes]:
    packed = data[:2] == GZIP
    unpacked = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_UNPACKED + 1) if packed else data
    if len(unpacked) > MAX_UNPACKED:
        raise _too_large()
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
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


def _run_id(text: bytes) -> str | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    run_id = record.get("run_id") if isinstance(record, dict) else None
    return run_id if isinstance(run_id, str) and run_id else None


def _zip(record: bytes, journal: bytes) -> bytes:
    """Zip to the same bytes each time, so that the same files are the same upload."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("run.json", record), (JOURNAL, journal)):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
