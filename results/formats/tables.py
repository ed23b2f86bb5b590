"""Uploaded bytes as tables of text: CSV (comma, semicolon or tab) or Markdown. Cells are not interpreted here.

There is no type sniffing: a wrong guess silently turns a commit hash into infinity or a file into one column.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from results.formats.errors import UploadError
from results.render.markdown import MarkdownTable, plain, tables

MAX_BYTES = 64 * 1024 * 1024
MAX_ROWS = 200_000
MAX_TEXT_ROWS = 400_000  # of a CSV or Markdown table
MAX_COLUMNS = 500
LOOKED_AT = 2000  # rows, for the meaning of columns
MAX_LINES = 1_000_000  # empty ones too, so that a file of nothing else costs no memory
MARKDOWN = "Markdown table"
_NUMERIC = re.compile(r"^\s*[+-]?[\d.,]*\d\s*(?:%|x|ms|us|µs|s)?\s*$", re.ASCII)
_LINE_ENDS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")  # of str.splitlines
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}


@dataclass(frozen=True)
class Sheet:
    """A header and rows of text, each with its line in the file."""

    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    description: str  # such as "CSV, separated by semicolon"
    comments: tuple[str, ...] = ()  # lines before the header that start with #

    def beginning(self) -> "Sheet":
        """Return the table with its first rows only: as many as a guess of its columns looks at."""
        return replace(self, rows=self.rows[:LOOKED_AT])


def decode(data: bytes) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark.

    Raises UploadError naming the byte that is not, or if the text has more than `MAX_LINES` lines.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16 = " It looks like UTF-16." if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise UploadError(
            f"Byte {error.start} (0x{data[error.start]:02x}) is not UTF-8.{utf16} Save the file as UTF-8 and try again."
        ) from error
    if sum(map(text.count, _LINE_ENDS)) > MAX_LINES:  # without splitting it
        raise UploadError(f"The file has more than {MAX_LINES:,} lines, empty ones included. Split it.")
    return text


def read_sheets(filename: str, data: bytes) -> list[Sheet]:
    """Return the tables of a file: one of a CSV, any number of a Markdown text.

    Raises UploadError if the file is empty, too large, not UTF-8 or not a well-formed CSV.
    """
    check_size(data)
    text = decode(data)
    if not text.strip():
        raise UploadError(f"{filename} is empty.")
    found = tables(text)
    if found:
        return [_of_markdown(table) for table in found]
    if filename.lower().endswith((".md", ".markdown")):
        raise UploadError("The text has no table: a header line, a line of dashes and rows, with | between cells.")
    return [_csv(text)]


def check_size(data: bytes) -> None:
    """Raise UploadError if the file is larger than an upload may be."""
    if len(data) > MAX_BYTES:
        raise UploadError(f"The file has {len(data):,} bytes; at most {MAX_BYTES:,} are taken. Split it.")


def _of_markdown(table: MarkdownTable) -> Sheet:
    rows = tuple((table.line + 2 + number, row) for number, row in enumerate(table.rows))
    return _checked(Sheet(tuple(map(plain, table.header)), rows, MARKDOWN))


def _csv(text: str) -> Sheet:
    lines = text.splitlines(keepends=True)
    skipped = next((number for number, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    comments = tuple(line.strip() for line in lines[:skipped] if line.strip())
    if skipped == len(lines):
        raise UploadError("The file has only comments; it needs a header line and rows.")
    first = lines[skipped : skipped + 2]  # the first may be a title
    widths = {mark: max(_width(line, mark) for line in first) for mark in _DELIMITERS}
    delimiter = max(widths, key=widths.__getitem__)
    records = list(islice(_records("".join(lines[skipped:]), delimiter, skipped), MAX_TEXT_ROWS + 4))  # more is refused
    if not records:
        raise UploadError("The file has no header line.")
    return sheet_of_records(records, f"CSV, separated by {_DELIMITERS[delimiter]}", comments)


def sheet_of_records(
    records: Sequence[tuple[int, tuple[str, ...]]], description: str, comments: tuple[str, ...] = ()
) -> Sheet:
    """Return the table of these rows: the first is the header, or the first two if cells of it are merged."""
    if _is_title(records):
        title = next(cell.strip() for cell in records[0][1] if cell.strip())
        records, comments = records[1:], (*comments, title)
        description += f", below the title {title[:80]!r}"
    header, rows = tuple(cell.strip() for cell in records[0][1]), records[1:]
    if len(rows) > 1 and _continues(header, rows[0][1], rows[1][1]):
        header, rows = _joined(header, rows[0][1]), rows[1:]
        description += ", header of two rows"
    return _checked(Sheet(header, tuple(rows), description, comments))


def _is_title(records: Sequence[tuple[int, tuple[str, ...]]]) -> bool:
    """Return whether the first of several rows is a title: one cell of words above a row of several."""
    if len(records) < 3:
        return False
    first, second = ([cell for cell in cells if cell.strip()] for _, cells in records[:2])
    return len(first) == 1 and len(second) > 2 and not _NUMERIC.search(first[0]) and not any(map(_is_number, second))


def _is_number(cell: str) -> bool:
    return cell.strip().replace(".", "").replace(",", "").isdecimal()


def _continues(first: Sequence[str], second: Sequence[str], third: Sequence[str]) -> bool:
    """Return whether the second row belongs to the header: the first has gaps, the second none and no number."""
    if len(first) != len(second) or "" not in first or not any(first):
        return False
    filled = all(above or below.strip() for above, below in zip(first, second, strict=True))
    words = not any(_NUMERIC.search(cell) for cell in second)
    return filled and words and any(_NUMERIC.search(cell) for cell in third)


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns: the header above (or to its left, for merged cells) and the column header."""
    names, above = [], ""
    for top, own in zip(first, second, strict=True):
        above = top or above
        own = own.strip()
        names.append(f"{above} {own}".strip() if own else top)
    return tuple(names)


def _width(line: str, delimiter: str) -> int:
    """Return how many cells a line has; 0 if it is not well-formed or a cell of it is beyond the csv module's limit."""
    try:
        return len(next(csv.reader([line], delimiter=delimiter)))
    except csv.Error:
        return 0


def _records(text: str, delimiter: str, skipped: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield every record that is not blank, with the line it begins on."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for record in reader:
            if any(cell.strip() for cell in record):
                yield skipped + begin, tuple(record)
            begin = reader.line_num + 1
    except csv.Error as error:
        raise UploadError(f"Line {skipped + begin} is not well-formed CSV: {error}.") from error


def _checked(sheet: Sheet) -> Sheet:
    if len(sheet.rows) > MAX_TEXT_ROWS:
        raise UploadError(f"The table has more than the {MAX_TEXT_ROWS:,} rows that are taken. Split it.")
    if len(sheet.header) > MAX_COLUMNS:
        raise UploadError(f"The table has {len(sheet.header):,} columns; at most {MAX_COLUMNS} are taken.")
    return sheet
