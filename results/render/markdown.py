"""Markdown as published reports and uploads use it: headings, paragraphs and pipe tables, with their place kept.

Reports come as copied text, so a table header may be glued to the line before it and fences may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Every slice rendered as Markdown contains this text; results/formats/own_csv.py recognizes such a file by it.
NOT_FOR_IMPORT = (
    "For reading: numbers are rounded and samples left out. To take the numbers to another attnbench, export the runs "
    "named below as CSV or JSON."
)

_SEPARATOR = re.compile(r"^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$")
MARKS = re.compile(r"[\\|`*\[\]<>~$&]")  # what `escape` puts a backslash before
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PIPE = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Table:
    """A pipe table and where it stands."""

    headings: tuple[str, ...]  # from the title down
    caption: str  # the last line of text between the heading and the table, "" if there is none
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # ragged rows are kept as they are
    line: int  # of the header, counted from 1; row i stands in line + 2 + i

    @property
    def section(self) -> str:
        """Return the headings and the caption in one line."""
        return " > ".join(part for part in (*self.headings, self.caption) if part)


@dataclass(frozen=True)
class Text:
    """Lines that belong together, and where they stand."""

    headings: tuple[str, ...]
    lines: tuple[str, ...]
    line: int


def read(text: str) -> list[Table | Text]:
    """Return every table and paragraph in order."""
    return list(_blocks(text.splitlines()))


def tables(text: str) -> list[Table]:
    """Return every table in order."""
    return [block for block in read(text) if isinstance(block, Table)]


def plain(cell: str) -> str:
    """Return the cell without bold marks and outer space."""
    return cell.replace("**", "").strip()


def escape(text: str) -> str:
    """Return a text from a file so that Markdown takes no part of it for a link, an image, a tag or emphasis."""
    return MARKS.sub(r"\\\g<0>", text)


def unescape(text: str) -> str:
    """Return the text that `escape` made this of."""
    return _ESCAPED.sub(r"\1", text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a pipe table; the inverse of reading one."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _blocks(lines: list[str]) -> Iterator[Table | Text]:
    headings: list[str] = []
    pending: list[str] = []
    caption = ""
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        columns = _separated(lines, at + 1)
        if columns and line.count("|") >= columns - 1:
            before, header = _header(line, columns)
            caption = plain(before).rstrip(":") or caption
            yield from _text(headings, [*pending, before], at)
            pending = []
            end = at + 2
            while end < len(lines) and lines[end].strip().startswith("|") and not _separated(lines, end + 1):
                end += 1
            yield Table(tuple(headings), caption, header, tuple(_cells(row) for row in lines[at + 2 : end]), at + 1)
            caption = ""
            at = end
            continue
        level = len(line) - len(line.lstrip("#"))
        if level and line[level : level + 1] == " ":
            yield from _text(headings, pending, at)
            pending, caption = [], ""
            headings = [*headings[: level - 1], line[level:].strip()]
        elif line:
            pending.append(line)
            caption = plain(line).rstrip(":")
        else:
            yield from _text(headings, pending, at)
            pending = []
        at += 1
    yield from _text(headings, pending, at)


def _text(headings: list[str], lines: list[str], at: int) -> Iterator[Text]:
    kept = tuple(line for line in lines if line.strip("\\- "))
    if kept:
        yield Text(tuple(headings), kept, at + 1 - len(kept))


def _separated(lines: list[str], at: int) -> int:
    """Return how many columns the separator in that line has; 0 if it is none."""
    line = lines[at].strip() if at < len(lines) else ""
    return len(_cells(line)) if "|" in line and _SEPARATOR.match(line) else 0


def _header(line: str, columns: int) -> tuple[str, tuple[str, ...]]:
    parts = _PIPE.split(line.removesuffix("|"))
    before = "|".join(parts[:-columns]) if len(parts) > columns else ""
    return before.strip(), tuple(part.strip() for part in parts[-columns:])


def _cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|")
    inner = inner if inner.endswith("\\|") else inner.removesuffix("|")
    return tuple(part.strip().replace("\\|", "|") for part in _PIPE.split(inner))
