"""Uploads: a file is understood and shown first, then imported whole or not at all.

A format is a `Format` in a module of this folder, or a `Peer` in a module of `peers` for the file of another tool. The
formats of other tools are tried first, because each recognizes only files of its tool.
"""

import codecs
import importlib
import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from results.formats.archives import BROKEN
from results.formats.errors import AlreadyHere, ReaderFault, UploadError, wall
from results.formats.importing import Arrival, RunStanding, import_for_undo, left_alone, standing, take_back
from results.formats.mapping import TableMapping
from results.formats.peers.engine import Peer
from results.formats.plain_table import UnknownTable, unknown
from results.formats.tables import check_size
from results.formats.upload import Format, Understanding, Upload

__all__ = [
    "AlreadyHere", "Arrival", "ReaderFault", "RunStanding", "TableMapping", "Understanding", "UnknownTable",
    "UploadError", "formats", "import_for_undo", "left_alone", "standing", "take_back", "understand",
]  # fmt: skip
_POSSIBLE = (
    "Possible are tables (CSV, Excel, Markdown), run folders, exports of attnbench, and result files of other tools as "
    "they are."
)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # these get another message
_LOOKED_AT = 1 << 16


@cache
def formats() -> tuple[Format | Peer, ...]:
    """Return the formats in the order in which they are tried: those of other tools first."""
    here = Path(__file__).parent
    names = [f"peers.{path.stem}" for path in sorted((here / "peers").glob("[!_]*.py"))]
    names += [path.stem for path in sorted(here.glob("[!_]*.py"))]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(found for module in modules for found in vars(module).values() if isinstance(found, Format | Peer))


def understand(filename: str, data: bytes, mappings: Mapping[str, TableMapping] | None = None) -> Understanding:
    """Return the contents of the file, read in the first format that fits. Writes nothing.

    `mappings` assigns columns of plain tables, by the key of their header (`mapping.key_of`). Raises UploadError if the
    file cannot be read or if no format fits; it is an `UnknownTable` if the user can assign the columns of a table.
    """
    name = "".join(character if character.isprintable() else "_" for character in Path(filename).name)
    check_size(data)  # before every format looks for its words in it
    upload = Upload(name or "upload", data, mappings or {})
    try:
        return _understood(upload)
    except UploadError as error:
        if said := _fault_of(upload):
            raise UploadError(said) from error
        raise


def _understood(upload: Upload) -> Understanding:
    near = []  # the missing columns of formats that nearly fit
    with wall(upload.filename):
        for format in formats():
            reason = format.reason_against(upload)
            if reason is None:
                return format.understand(upload)
            if reason and isinstance(format, Peer):
                near.append(f"As {format.description}: {reason}")
    others = "; ".join(format.description for format in formats() if isinstance(format, Peer))
    with wall(upload.filename):
        raise unknown(upload, near, f"{_POSSIBLE} Those of other tools are: {others}.")


def _fault_of(upload: Upload) -> str | None:
    """Return the fault of a file and its remedy; None for a sound file."""
    start = upload.data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if upload.data[:2] == b"PK":
        said = _of_zip(upload.data)
    elif start in (b"{", b"["):
        said = _of_json(upload.data, lines=start == b"{")
    elif b"\0" in upload.data[:_LOOKED_AT] and upload.kind == "text" and upload.data[:2] not in _UTF_16:
        said = "is neither text nor an archive"
    else:
        return None
    return said and f"{upload.filename} {said}. {_POSSIBLE}"


def _of_zip(data: bytes) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.infolist()
    except BROKEN as error:
        return f"begins like a zip archive but cannot be opened ({error}); create the archive again"
    return None


def _of_json(data: bytes, *, lines: bool) -> str | None:
    """Return why JSON cannot be read. For a file of JSON lines, only the first line is checked."""
    try:
        json.loads(data)
    except RecursionError:
        return "is JSON nested too deeply to be read; give the results as flat rows"
    except ValueError as error:
        first = data.lstrip().split(b"\n", 1)[0]
        if lines and first != data and _of_json(first, lines=False) is None:
            return None
        return f"begins like JSON and is not valid JSON ({error}); write it again"
    return None
