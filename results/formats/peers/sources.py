"""How the files of other tools are opened: one table, or JSON as an object, an array or lines.

`table` and `objects` return None for a file of another kind and raise nothing, because another importer may read it.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from results.formats import values
from results.formats.errors import CellError, CellFault, UploadError
from results.formats.tables import MAX_BYTES, MAX_ROWS, Sheet, decode
from results.formats.upload import Upload

_MAX_DEPTH = 8  # nested objects; deeper ones are not flattened


@dataclass(slots=True)
class Row:
    """One result: its cells by column, or its JSON values by dotted path. An absent cell reads as an empty one.

    `prefix` selects one of several groups of columns: `time_ms` is the column `fwd_time_ms` under the prefix `fwd_`.
    """

    place: int
    cells: Sequence[Any]
    places: Mapping[str, int]
    said: Mapping[str, Any] = field(default_factory=dict)  # values that the importer adds or replaces, by column
    prefix: str = ""

    def having(self, prefix: str = "", **said: Any) -> "Row":
        """Return the row with more values, and with another prefix."""
        return replace(self, said={**self.said, **said}, prefix=prefix or self.prefix)

    def column(self, name: str) -> str:
        """Return the full name of a column, with the prefix if such a column exists."""
        full = self.prefix + name
        return full if full in self.said or full in self.places else name

    def value(self, name: str) -> Any:
        """Return the value of a column; None if there is no such column."""
        name = self.column(name)
        if name in self.said:
            return self.said[name]
        return self.cells[self.places[name]] if name in self.places else None

    def text(self, name: str) -> str:
        """Return the cell as text, without surrounding blanks."""
        return text_of(self.value(name))

    def read(self, name: str, parse: Callable[[str], Any] = values.words) -> Any:
        """Return the parsed cell, None if it is empty. Raises CellFault."""
        text = self.text(name)
        if not text:
            return None
        if parse is values.words and not isinstance(self.value(name), str):
            raise self.fault(name, "is not a name")
        try:
            return parse(text)
        except CellError as error:
            raise self.fault(name, str(error)) from error

    def need(self, name: str, parse: Callable[[str], Any] = values.words) -> Any:
        """Return the parsed cell. Raises CellFault also for an empty cell."""
        value = self.read(name, parse)
        if value is None:
            raise self.fault(name, "is empty")
        return value

    def one_of(self, name: str, possible: Iterable[str]) -> str:
        """Return the text of a cell. Raises CellFault if it is not one of these."""
        text = self.text(name)
        if text not in possible:
            raise self.fault(name, f"is not one of {', '.join(possible)}")
        return text

    def fault(self, name: str, reason: str) -> CellFault:
        """Return the error for a cell of this row."""
        return CellFault(self.column(name), self.text(name), reason)


@dataclass(frozen=True)
class Entry:
    """One row of a table, one line of a text or one object of a JSON document, before it is interpreted."""

    place: int
    value: Any
    text: str = ""  # shown if the whole entry is refused
    fault: str = ""  # why the entry is refused before it is interpreted


@dataclass(frozen=True)
class Found:
    """The entries of a file that an importer recognizes."""

    entries: Sequence[Entry]
    unit: str = "line"
    description: str = ""
    header: Sequence[str] = ()
    names: Sequence[str] = ()  # column names of the rows, if they differ from the header
    meanings: Mapping[str, str] = field(default_factory=dict)  # by column
    assumptions: Sequence[str] = ()


def table(upload: Upload, columns: Sequence[str]) -> Found | None:
    """Return the one table of a text file that has these columns."""
    fitting = [sheet for sheet in _sheets(upload, columns, all) if set(columns) <= set(sheet.header)]
    return of_sheet(fitting[0]) if len(fitting) == 1 else None


def tables(upload: Upload, columns: Sequence[str], description: str) -> list[Sheet]:
    """Return the tables of a text file that have these columns and this description."""
    sheets = _sheets(upload, columns, all)
    return [sheet for sheet in sheets if sheet.description == description and set(columns) <= set(sheet.header)]


def lacking(upload: Upload, columns: Sequence[str]) -> str:
    """Return which columns the table lacks if it has most of them, "" otherwise."""
    headers = [set(sheet.header) for sheet in _sheets(upload, columns, lambda found: sum(found) * 2 >= len(columns))]
    closest = max(headers, key=lambda header: len(header & set(columns)), default=set())
    missing = [name for name in columns if name not in closest]
    return f"It lacks the columns {', '.join(missing)}." if missing and len(missing) * 2 <= len(columns) else ""


def of_sheet(sheet: Sheet) -> Found:
    """Return the rows of a table as entries; of columns with the same name, the first counts."""
    places = places_of(sheet.header)
    width = len(sheet.header)
    faults = {len(cells): f"has {len(cells)} cells where the header has {width}" for _, cells in sheet.rows}
    faults[width] = ""
    rows = [Row(line, cells, places) for line, cells in sheet.rows]
    entries = [Entry(row.place, row, ", ".join(row.cells), faults[len(row.cells)]) for row in rows]
    return Found(entries, description=f"{sheet.description}, ", header=sheet.header)


def objects(upload: Upload, names: Sequence[str], markers: Sequence[str] = (), unit: str = "line") -> Found | None:
    """Return the objects of a JSON object, array or file of JSON lines whose first object has these names.

    `markers` are further names that must occur in the text. A line that is not JSON has the value None.
    """
    data = upload.data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if data[:1] not in (b"{", b"[") or len(data) > MAX_BYTES:
        return None
    if not all(f'"{name}"'.encode() in data for name in (*names, *markers)):
        return None
    found = _loaded(data)
    if isinstance(found, dict | list):
        entries = [Entry(at, value) for at, value in enumerate(found if isinstance(found, list) else [found], start=1)]
    elif data.count(b"\n") + data.count(b"\r") <= MAX_ROWS:
        lines = enumerate(data.splitlines(), start=1)
        entries = [Entry(at, _loaded(line)) for at, line in lines if line.strip()]
    else:
        return None
    first = entries[0].value if entries else None
    return Found(entries, unit) if isinstance(first, dict) and set(names) <= set(first) else None


def row_of(entry: Entry, rename: Callable[[str], str] = str) -> Row:
    """Return a JSON object as a row of its values by dotted path. Raises CellError if it is not an object."""
    if not isinstance(entry.value, dict):
        raise CellError("is not a JSON object")
    flat: dict[str, Any] = {}
    for path, value in _flat(entry.value, "", 0):
        flat.setdefault(rename(path), value)
    return row_with(entry.place, flat)


def row_with(place: int, said: Mapping[str, Any], prefix: str = "") -> Row:
    """Return a row of values by column."""
    return Row(place, list(said.values()), places_of(list(said)), prefix=prefix)


def lines_of(upload: Upload, marks: Sequence[bytes]) -> list[str]:
    """Return the lines of a text file that has one of these marks; none of another file."""
    data = upload.data
    if upload.kind != "text" or len(data) > MAX_BYTES or not any(mark in data for mark in marks):
        return []
    try:
        return decode(data).split("\n")
    except UploadError:
        return []


def text_of(value: Any) -> str:
    """Return a cell or a JSON value as text; None is an empty text."""
    if isinstance(value, str):
        return value.strip()
    try:
        return "" if value is None else str(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a very large number"


def places_of(header: Sequence[str]) -> dict[str, int]:
    """Return the index of each column; of columns with the same name, the first."""
    return {name: at for at, name in reversed(list(enumerate(header)))}


def only(rows: Iterable[Row], column: str) -> str:
    """Return the text of a column if all filled cells agree, "" otherwise."""
    texts = {text for row in rows if (text := row.text(column))}
    return texts.pop() if len(texts) == 1 else ""


def _sheets(upload: Upload, columns: Sequence[str], enough: Callable[[list[bool]], bool]) -> list[Sheet]:
    if upload.kind != "text" or not enough([name.encode() in upload.data for name in columns]):
        return []
    try:
        return upload.sheets
    except (UploadError, csv.Error):
        return []


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _flat(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else name, depth + 1)
    else:
        yield path, value
