"""Uploads: a file is understood and shown first, then imported whole or not at all.

A format is a `Format` in a module of this folder, or a `Peer` in a module of `peers` for the file of another tool. The
formats of other tools are tried first, because each recognizes only files of its tool.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from results.formats import diagnosis
from results.formats.errors import ReaderFault, UploadError, wall
from results.formats.importing import (
    AlreadyHere,
    Arrival,
    RunStanding,
    difference,
    import_for_undo,
    left_alone,
    standing,
    take_back,
)
from results.formats.mapping import TableMapping
from results.formats.peers.engine import Peer
from results.formats.plain_table import UnknownTable, unknown
from results.formats.tables import check_size
from results.formats.upload import Column, Format, Rejection, Understanding, Upload

__all__ = [
    "AlreadyHere", "Arrival", "Column", "ReaderFault", "Rejection", "RunStanding", "TableMapping", "Understanding",
    "UnknownTable", "UploadError", "difference", "formats", "import_for_undo", "left_alone", "standing", "take_back",
    "understand",
]  # fmt: skip


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
        if said := diagnosis.of(upload):
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
        raise unknown(upload, near, f"{diagnosis.POSSIBLE} Those of other tools are: {others}.")
