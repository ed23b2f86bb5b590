"""Excel workbooks (.xlsx): each sheet as a table of text. Macros, external links and formulas are never followed.

A formula reads as the value that Excel saved with it. openpyxl is in requirements.txt because many people keep their
numbers in spreadsheets; it is small and pure Python. It is imported for the first workbook only.
"""

import io
import zipfile
from datetime import date, datetime
from typing import Any

from results.formats.archives import BROKEN, MAX_MEMBERS
from results.formats.errors import UploadError, words_of
from results.formats.tables import MAX_COLUMNS, MAX_ROWS, Sheet, sheet_of_records

DESCRIPTION = "Excel sheet"
MAX_UNPACKED = 128 * 1024 * 1024  # bytes, all parts together
MAX_SHEETS = 50
MAX_CELLS = 2_000_000  # of all sheets together, empty cells before the last of a row included
_OF_A_GAP = 9  # cells that a row which the file leaves out counts as; one sheet of MAX_ROWS is possible
_PARTS = {"[Content_Types].xml", "xl/workbook.xml"}


def is_workbook(data: bytes) -> bool:
    """Return whether a zip archive is a workbook of Excel, by its parts."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return set(archive.namelist()) >= _PARTS
    except BROKEN:
        return False


def read_workbook(filename: str, data: bytes) -> list[Sheet]:
    """Return the sheets that hold rows. Raises UploadError if the file is damaged or unpacks to too much."""
    _check_parts(filename, data)
    import openpyxl  # 0.2 s, paid only for a workbook

    try:
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
        if len(book.worksheets) > MAX_SHEETS:
            raise UploadError(f"{filename} has {len(book.worksheets)} sheets; at most {MAX_SHEETS} are taken.")
        found, left = [], MAX_CELLS
        for sheet in book.worksheets:
            rows, taken = _rows(filename, sheet, left)
            left -= taken
            found.append((sheet.title, rows))
    except UploadError:
        raise
    except Exception as error:  # a wrong part raises almost anything in openpyxl
        raise UploadError(f"{filename} is not a workbook that can be read ({words_of(error)}).") from error
    sheets = [sheet_of_records(rows, f"{DESCRIPTION} {title[:31]!r}") for title, rows in found if len(rows) > 1]
    if not sheets:
        raise UploadError(f"{filename} has no sheet with a header and rows.")
    return sheets


def _check_parts(filename: str, data: bytes) -> None:
    """Raise UploadError for a bomb, an encrypted part or one that declares entities, before anything is parsed."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            if len(parts) > MAX_MEMBERS or sum(part.file_size for part in parts) > MAX_UNPACKED:
                raise UploadError(f"{filename} unpacks to more than {MAX_UNPACKED:,} bytes. Split it.")
            for part in parts:
                if part.filename.endswith((".xml", ".rels")) and b"<!DOCTYPE" in archive.read(part)[:4096]:
                    raise UploadError(f"{filename} declares a document type in {part.filename!r}; save it with Excel.")
    except UploadError:
        raise
    except BROKEN as error:
        raise UploadError(f"{filename} cannot be read: {error}. Save it again and retry.") from error


def _rows(filename: str, sheet: Any, most: int) -> tuple[list[tuple[int, tuple[str, ...]]], int]:
    """Return the rows that are not blank with their number, all as wide as the first, and how many cells they took.

    A row ends at its last cell, and a row that the file leaves out counts as a few cells. Raises UploadError if the
    sheet has more than `most` cells.
    """
    sheet.reset_dimensions()  # the size stated in the file may be wrong
    found, width, taken = [], 0, 0
    for number, cells in enumerate(sheet.iter_rows(max_row=MAX_ROWS + 2), start=1):
        if number > MAX_ROWS + 1:
            raise UploadError(f"{filename} has a sheet of more than {MAX_ROWS:,} rows. Split it.")
        taken += max(len(cells), width) if cells else _OF_A_GAP
        if taken > most:
            raise UploadError(f"{filename} has more than {MAX_CELLS:,} cells. Split it.")
        texts = [_text(cell) for cell in cells[: MAX_COLUMNS + 1]]
        while texts and not texts[-1]:
            texts.pop()
        if not texts:
            continue
        width = width or len(texts)
        found.append((number, tuple(texts + [""] * (width - len(texts)))))
    return found, taken


def _text(cell: Any) -> str:
    """Return a cell as a person would type it."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        percent = "%" in (cell.number_format or "")
        return f"{value * 100:.10g}%" if percent else repr(int(value) if value == int(value) else value)
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
