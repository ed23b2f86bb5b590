"""The tables of reports as data, and rows that pair printed cells with your own numbers.

The facts of a cell are a dict, merged from those of the table, the row and the column. Its keys are the fields of Case;
`seqlen` for both lengths; implementation, metric, mode and baseline; `std`, the column with the standard deviation;
`unit` and `format` for the text; `bold`, the seqlen and the ratio from which a cell is bold; `own_metric`, the metric
of our number if it is another one; and `places`, our candidates for each published name, best first.

Reports print MB and GB although their code divides by 1024, so MB is read as MiB and GB as 1024 MiB.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from results.paths import PUBLISHED
from results.records import Measurement
from results.render.markdown import plain

EXTRAPOLATED = "extrapolated"  # a flag of numbers that were not measured
MIB = {"MB": 1.0, "GB": 1024.0}
_SCALES = {**MIB, "PFLOPS": 1000.0}  # to MiB and TFLOP/s

_NUMBER = r"~?\s*(?P<number>\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_CELL = re.compile(rf"^{_NUMBER}\s*(?P<unit>[A-Za-z%]+)?(?:\s+per block)?$")
_REMARK = re.compile(r"^(?P<cell>.*?)\s*\((?P<remark>.*)\)$")
_SEQLEN = re.compile(r"^(\d+)(K?)$")


class ReportError(ValueError):
    """A report does not exist, or a run does not fit it. The message says what was expected."""


def number_of(cell: str | None) -> float | None:
    """Return the number in a cell, memory in MiB and rates in TFLOP/s; None for words and for a cell without a number.

    A number followed by "(OOM)" is the memory that would be needed, so it is no result.
    """
    text, remark = _split(plain(cell or ""))
    match = _CELL.match(text)
    if not match or remark == "OOM":
        return None
    value = float(match["number"].replace(",", ""))
    return round(value * _SCALES[match["unit"]], 6) if match["unit"] in _SCALES else value


def read_seqlen(text: str) -> int:
    """Return a printed sequence length: 512, 1,024 or 2K (K is 1024). Raises ReportError for anything else."""
    match = _SEQLEN.match(plain(text).replace(",", ""))
    if not match:
        raise ReportError(f"Sequence length {text!r} is neither a number nor one with K.")
    return int(match[1]) * (1024 if match[2] else 1)


def _split(cell: str) -> tuple[str, str | None]:
    match = _REMARK.match(cell)
    return (match["cell"], match["remark"]) if match else (cell, None)


Facts = Mapping[str, Any]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A column of words. The notes of the row's numbers hold its text."""

    own: Callable[[Facts], str] | None = None  # makes the text of an own row from the facts of the row


@dataclass(frozen=True)
class SpreadColumn:
    """A column with the standard deviations of another, which names it as `std`."""


@dataclass(frozen=True)
class Best:
    """A column that prints the best ratio of a row, with the name of the implementation in parentheses."""

    names: Mapping[str, str]  # name in parentheses -> implementation
    facts: Facts


@dataclass(frozen=True)
class Grid:
    """One table of a report."""

    section: str  # begins the origin of its cells
    header: Labels
    row: Callable[[Labels], Facts]  # labels of a row -> facts
    columns: Mapping[str, Facts | Remark | SpreadColumn | Best]  # header -> facts
    name: Callable[[Measurement], Labels] | None = None  # labels of a row; the inverse of `row`
    rows: tuple[Labels, ...] = ()  # the only rows there are, where `name` is None
    facts: Facts = field(default_factory=dict)  # facts of every cell
    order: tuple[int, ...] = (0,)  # the labels that own rows are sorted by
    own: Facts = field(default_factory=dict)  # facts of own cells that replace these; None leaves a field open
    measured_by: tuple[str, Mapping[str, str]] | None = None  # a sweep, and the fact that each of its axes sets

    @property
    def labels(self) -> int:
        """Return how many leading columns name the row."""
        return len(self.header) - len(self.columns)


@dataclass(frozen=True)
class TableRow:
    """A row of a published table, and the same row of an own run."""

    labels: Labels
    printed: tuple[str, ...]
    own: tuple[str, ...] | None  # None: the run has no number for this row
    run: str | None = None  # run of the own numbers
    cases: tuple[int, ...] = ()  # number of cases of each range in the own words


@dataclass(frozen=True)
class Gap:
    """Why some own cells of a table are empty, and the command that measures them."""

    words: str
    command: str


@dataclass(frozen=True)
class Section:
    """A published table with both numbers in each cell."""

    title: str
    setting: str  # fields of the own cases that labels and columns do not give
    labels: Labels  # headers of the columns that name a row
    columns: Labels  # headers of the others
    metrics: tuple[str | None, ...]  # metrics of the other columns; None for words and spreads
    rows: tuple[TableRow, ...]
    by_formula: bool = False  # own cells are computed and belong to no run
    pooled: bool = False  # own cells come from all runs together
    gaps: tuple[Gap, ...] = ()  # why own cells are empty

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the runs of the own cells."""
        return tuple(dict.fromkeys(row.run for row in self.rows if row.run))


class Note(NamedTuple):
    """A quoted paragraph of a report, or a table of words."""

    section: str  # its headings
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def shipped_notes(report: str) -> list[Note]:
    """Return the observations, recommendations and tables of words that ship with a report's runs, in order."""
    paths = sorted(PUBLISHED.glob(f"published-{report}*/notes.json"))
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))]
    return [Note(r["section"], tuple(r["lines"]), tuple(r["header"]), tuple(map(tuple, r["rows"]))) for r in records]


def origins(grid: Grid, labels: Labels) -> dict[str, str]:
    """Return the places of the numbers of a row, by column: section, row and column of each."""
    columns = {name: column for name, column in grid.columns.items() if not isinstance(column, Remark | SpreadColumn)}
    spreads = {
        name: column["std"] for name, column in columns.items() if isinstance(column, Mapping) and "std" in column
    }
    cells = {name: f"{name} | {spreads[name]}" if name in spreads else name for name in columns}
    row = (grid.section, ", ".join(map(plain, labels)))
    return {name: " / ".join(filter(None, (*row, cell))) for name, cell in cells.items()}
