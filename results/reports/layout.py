"""A report's tables as data: what rows and columns say of a cell. One description parses and renders.

What a row, a column and the table itself say are dicts, merged for each cell: fields of Case, `seqlen` (both of
seqlen_q and seqlen_k, where those are not said), `head_dim` (also of the values), and implementation, metric, mode,
baseline, and of the cell unit, std (the column with the standard deviation), note, why (it has no number), failed (what
OOM means here). Of own cells `own_metric` can stand for the metric, and `places` say by published name who
may stand in its place, the first choice first.

A printed cell is a number with its unit, or why there is none. Reports print MB and GB for what their code divides by
1024, so MB is read as MiB and GB as 1024 MiB. Numbers that a report states in its prose are claims.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.records import CASE_FIELDS, Case, Measurement, Status
from results.render.markdown import Table, plain

MIB = {"MB": 1.0, "GB": 1024.0}
_SCALES = {**MIB, "PFLOPS": 1000.0}  # to MiB and TFLOP/s

_NUMBER = r"~?\s*(?P<number>\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_CELL = re.compile(rf"^{_NUMBER}\s*(?P<unit>[A-Za-z%]+)?(?:\s+per block)?$")
_REMARK = re.compile(r"^(?P<cell>.*?)\s*\((?P<remark>.*)\)$")
_SEQLEN = re.compile(r"^(\d+)(K?)$")


class ReportError(ValueError):
    """A text or run that does not fit the report's layout; the message says where and what was expected."""


@dataclass(frozen=True)
class PrintedCell:
    """The status of a printed cell, its number if there is one, and what stands beside it in brackets."""

    status: Status
    value: float | None = None
    remark: str | None = None


def read_cell(text: str, unit: str = "") -> PrintedCell:
    """Return the meaning of a cell; `unit` is its unit where the cell itself names none. Memory comes in MiB.

    Raises ReportError if the cell is neither a number nor a known word for a missing one.
    """
    cell, remark = _split(plain(text))
    if cell == "OOM":
        return PrintedCell(Status.OOM, remark=remark)
    if cell == "N/A":
        return PrintedCell(Status.UNSUPPORTED, remark=remark)
    if cell in ("—", "-", "Enabled", "Fits!"):
        return PrintedCell(Status.SKIPPED, remark=remark)
    match = _CELL.match(cell)
    if not match:
        raise ReportError(f"Cell {text!r} is neither a number nor one of OOM, N/A, —.")
    if remark == "OOM":  # the number is what would be needed
        return PrintedCell(Status.OOM, remark=f"{cell} needed")
    value = float(match["number"].replace(",", ""))
    return PrintedCell(Status.OK, _scale(value, match["unit"] or unit), remark)


def read_seqlen(text: str) -> int:
    """Return a printed sequence length: 512, 1,024 or 2K (K is 1024). Raises ReportError for anything else."""
    match = _SEQLEN.match(plain(text).replace(",", ""))
    if not match:
        raise ReportError(f"Sequence length {text!r} is neither a number nor one with K.")
    return int(match[1]) * (1024 if match[2] else 1)


def read_count(text: str) -> int | None:
    """Return a whole number in a label; None where the case does not say it."""
    return None if text == "None" else int(text.replace(",", ""))


def with_k(seqlen: int) -> str:
    """Return a sequence length as reports print it: 2048 as 2K, 512 as 512."""
    return f"{seqlen // 1024}K" if seqlen % 1024 == 0 else str(seqlen)


def _split(cell: str) -> tuple[str, str | None]:
    match = _REMARK.match(cell)
    return (match["cell"], match["remark"]) if match else (cell, None)


def _scale(value: float, unit: str) -> float:
    return round(value * _SCALES[unit], 6) if unit in _SCALES else value


Says = Mapping[str, Any]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A column of words: kept in the notes of the row's numbers."""

    own: Callable[[Says], str] | None = None  # what arithmetic says in an own row, from what is said of the row


@dataclass(frozen=True)
class SpreadColumn:
    """A column with the standard deviations of another, which names it as `std`."""


@dataclass(frozen=True)
class Best:
    """A column that prints the best ratio of a row and, in brackets, whose it is."""

    names: Mapping[str, str]  # name in brackets -> implementation
    says: Says


@dataclass(frozen=True)
class Grid:
    """One table of a report."""

    section: str  # begins the origin of its cells
    header: Labels
    row: Callable[[Labels], Says]  # what the labels of a row say
    columns: Mapping[str, Says | Remark | SpreadColumn | Best]  # header -> what it says
    name: Callable[[Measurement], Labels] | None = None  # labels of a row; the inverse of `row`
    rows: tuple[Labels, ...] = ()  # the only rows there are, where `name` is None
    says: Says = field(default_factory=dict)  # of every cell
    order: tuple[int, ...] = (0,)  # the labels that own rows are sorted by
    run: str = ""  # which of the report's runs it belongs to
    own: Says = field(default_factory=dict)  # of own cells in place of what is said; None leaves a field open
    measured_by: tuple[str, Mapping[str, str]] | None = None  # a sweep, and what is said of a cell by the axis it sets

    @property
    def labels(self) -> int:
        """Return how many leading columns name the row."""
        return len(self.header) - len(self.columns)

    def matches(self, table: Table) -> bool:
        """Tell whether the table is the one described here."""
        return table.header == self.header and (not self.section or table.section.endswith(self.section))


@dataclass(frozen=True)
class Row:
    """A row of a published table, and the same row of an own run."""

    labels: Labels
    printed: tuple[str, ...]
    own: tuple[str, ...] | None  # None: the run has nothing of it
    run: str | None = None  # whose numbers are its own
    cases: tuple[int, ...] = ()  # how many each span in its own words is of


@dataclass(frozen=True)
class Gap:
    """Why some own cells of a table are empty, and the command that measures them."""

    words: str
    command: str


@dataclass(frozen=True)
class Section:
    """A published table with both numbers in each cell."""

    title: str
    setting: str  # what of the own run the table's rows and columns do not say
    labels: Labels  # headers of the columns that name a row
    columns: Labels  # headers of the others
    metrics: tuple[str | None, ...]  # of the others; None for words and spreads
    rows: tuple[Row, ...]
    by_formula: bool = False  # what stands as own is computed, and is of no run
    pooled: bool = False  # what stands as own is of all runs together
    gaps: tuple[Gap, ...] = ()  # why own cells are empty

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the runs that own cells are of."""
        return tuple(dict.fromkeys(row.run for row in self.rows if row.run))

    @property
    def is_printed(self) -> bool:
        """Return whether the table is of the report, and not an addition to it."""
        return any(any(row.printed) for row in self.rows)


def parse_grid(grid: Grid, table: Table, run_id: str) -> list[Measurement]:
    """Return every cell of the table as a measurement. Raises ReportError for a ragged row or an unreadable cell."""
    measurements = []
    for number, row in enumerate(table.rows):
        if len(row) != len(table.header):
            line = table.line + 2 + number
            raise ReportError(f"Line {line}: {len(row)} cells where the header has {len(table.header)}.")
        measurements += _row(grid, dict(zip(table.header, row, strict=True)), run_id)
    return measurements


def measure(run_id: str, says: Says, *, printed: str, origin: str, notes: Iterable[str | None] = ()) -> Measurement:
    """Return a measurement from what is said of a cell and what the cell prints."""
    text, _, spread = str(says.get("text", printed)).partition(" | ")
    cell = read_cell(text, says.get("unit", ""))
    status = says.get("failed", cell.status) if cell.status is Status.OOM else cell.status
    parts = [cell.remark, says.get("note"), _why_missing(status, printed, says.get("why")), *notes]
    return Measurement(
        run_id=run_id,
        case=case_of(says),
        implementation=says["implementation"],
        metric=says["metric"],
        status=status,
        mode=says.get("mode"),
        baseline=says.get("baseline"),
        value=cell.value,
        statistic=None if status is not Status.OK else "mean" if spread else "printed",
        mean=cell.value if spread else None,
        std=read_cell(spread).value if spread else None,
        note="; ".join(part for part in parts if part) or None,
        printed=printed,
        origin=origin,
    )


def case_of(says: Says) -> Case:
    """Return the case that is said; what is not said is None."""
    fields = {}
    if "seqlen" in says:
        fields |= {"seqlen_q": says["seqlen"], "seqlen_k": says["seqlen"]}
    fields |= {name: says[name] for name in CASE_FIELDS if name in says}
    if "head_dim" in says:
        fields.setdefault("head_dim_v", says["head_dim"])
    return Case(**fields)


def origin_of(grid: Grid, labels: Labels, column: str) -> str:
    """Return where a cell stands: section, row and column."""
    parts = (grid.section, ", ".join(map(plain, labels)), column)
    return " / ".join(part for part in parts if part)


def origins(grid: Grid, labels: Labels) -> dict[str, str]:
    """Return where the numbers of a row stand, by column."""
    says = {name: column for name, column in grid.columns.items() if not isinstance(column, Remark | SpreadColumn)}
    return {
        name: origin_of(grid, labels, " | ".join(_cells_of(name, column if isinstance(column, Mapping) else {})))
        for name, column in says.items()
    }


def _row(grid: Grid, row: dict[str, str], run_id: str) -> list[Measurement]:
    labels = tuple(list(row.values())[: grid.labels])
    remarks = [f"{column}: {row[column]}" for column, says in grid.columns.items() if isinstance(says, Remark)]
    measurements = []
    for column, says in grid.columns.items():
        if isinstance(says, Remark | SpreadColumn):
            continue
        if isinstance(says, Best):
            says = _best(says, row[column])
        said = {**grid.says, **grid.row(labels), **says}
        printed = " | ".join(row[name] for name in _cells_of(column, said))
        origin = origin_of(grid, labels, " | ".join(_cells_of(column, said)))
        measurements.append(measure(run_id, said, printed=printed, origin=origin, notes=remarks))
    return measurements


def _cells_of(column: str, says: Says) -> tuple[str, ...]:
    return (column, says["std"]) if "std" in says else (column,)


def _best(best: Best, text: str) -> Says:
    cell, _, name = plain(text).rstrip(")").partition(" (")
    if name not in best.names:
        raise ReportError(f"Cell {text!r} names none of {', '.join(best.names)}.")
    return {**best.says, "implementation": best.names[name], "text": cell}


def _why_missing(status: Status, printed: str, why: str | None) -> str | None:
    if status is Status.OK:
        return None
    return f"the report prints {plain(printed)!r}" + (f": {why}" if why else "")


@dataclass(frozen=True)
class Claim:
    """A sentence with numbers in it."""

    pattern: str  # finds the sentence; each named group is a printed figure
    origin: str  # where it stands
    says: Says  # of every figure
    figures: dict[str, Says]  # group -> what is said of it beside `says`
    note: str | None = None
    run: str = ""  # which of the report's runs it belongs to


def parse_claims(text: str, claims: Sequence[Claim], run_id: str) -> Iterator[Measurement]:
    """Return the figures of every claim. Raises ReportError if the text lacks one."""
    for claim in claims:
        match = re.search(claim.pattern, text)
        if not match:
            raise ReportError(f"The claim at {claim.origin!r} is missing; expected {claim.pattern!r}.")
        for group, says in claim.figures.items():
            origin = claim.origin if len(claim.figures) == 1 else f"{claim.origin} / {group}"
            said = {**claim.says, **says}
            yield measure(run_id, said, printed=match[group], origin=origin, notes=[claim.note])


def low_and_high(metric: str) -> dict[str, Says]:
    """Return the figures of a range: groups low and high of one metric."""
    return {
        "low": {"metric": metric, "note": "low end of a range"},
        "high": {"metric": metric, "note": "high end of a range"},
    }
