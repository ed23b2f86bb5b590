"""Markdown: pipe tables are written and read, and text of files is escaped.

Tables often come as copied text, so a header may be glued to the line before it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Row = TypeVar("Row")
# Every slice rendered as Markdown contains this text; results/formats/own.py recognizes such a file by it.
NOT_FOR_IMPORT = (
    "For reading: numbers are rounded and samples left out. To take the numbers to another attnbench, export the runs "
    "named below as CSV or JSON."
)

_SEPARATOR = re.compile(r"^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$")
MARKS = re.compile(r"[\\|`*\[\]<>~$&]")  # `escape` puts a backslash before each of them
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PIPE = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class MarkdownTable:
    """A pipe table and its place in the text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # ragged rows are kept
    line: int  # line of the header, counted from 1; row i is in line + 2 + i


def tables(text: str) -> list[MarkdownTable]:
    """Return every table in order."""
    lines, found, at = text.splitlines(), [], 0
    while at < len(lines):
        line = lines[at].strip()
        columns = _separated(lines, at + 1)
        if not columns or line.count("|") < columns - 1:
            at += 1
            continue
        end = at + 2
        while end < len(lines) and lines[end].strip().startswith("|") and not _separated(lines, end + 1):
            end += 1
        header = tuple(part.strip() for part in _PIPE.split(line.removesuffix("|"))[-columns:])
        found.append(MarkdownTable(header, tuple(map(cells_of, lines[at + 2 : end])), at + 1))
        at = end
    return found


def plain(cell: str) -> str:
    """Return the cell without bold marks and outer space."""
    return cell.replace("**", "").strip()


def escape(text: str) -> str:
    """Return a text of a file with a backslash before each mark that Markdown would interpret."""
    return MARKS.sub(r"\\\g<0>", text)


def unescape(text: str) -> str:
    """Return the original of an escaped text."""
    return _ESCAPED.sub(r"\1", text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a pipe table; the inverse of reading one."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def table_of(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    """Write a pipe table of rows; `columns` has the text of a row's cell by header."""
    return markdown_table([*columns], [[text(row) for text in columns.values()] for row in rows])


def _separated(lines: list[str], at: int) -> int:
    """Return the number of columns of the separator in a line; 0 if the line is no separator."""
    line = lines[at].strip() if at < len(lines) else ""
    return len(cells_of(line)) if "|" in line and _SEPARATOR.match(line) else 0


def cells_of(line: str) -> tuple[str, ...]:
    """Return the cells of a line of a pipe table."""
    inner = line.strip().removeprefix("|")
    inner = inner if inner.endswith("\\|") else inner.removesuffix("|")
    return tuple(part.strip().replace("\\|", "|") for part in _PIPE.split(inner))
