"""Coverage of published reports: how many rows and cells your runs fill, by table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from results.render.markdown import markdown_table
from results.reports.by_formula import SUFFIX
from results.reports.layout import Gap, Labels, Section

_NO_RATIO = "—"
_HEADER = ("table", "rows", "filled", "by formula", "cells", "filled", "from")


@dataclass(frozen=True)
class TableCoverage:
    """Coverage of one table. A status such as OOM counts as filled."""

    title: str
    rows: int
    filled: int  # rows with a cell from a run
    by_formula: int  # other rows, filled by formulas
    cells: int  # printed numbers and sentences
    filled_cells: int  # printed cells that a run fills
    runs: tuple[str, ...]
    gaps: tuple[Gap, ...]

    @property
    def open(self) -> int:
        """Return the number of empty rows."""
        return self.rows - self.filled - self.by_formula


def coverage(found: Sequence[Section]) -> list[TableCoverage]:
    """Return the coverage of each table of a report, in order."""
    titles = dict.fromkeys(section.title for section in found if not section.by_formula and section.is_printed)
    return [_of_table(title, found) for title in titles]


def total(tables: Sequence[TableCoverage], title: str = "all") -> TableCoverage:
    """Return the sum of several tables."""
    counts = ("rows", "filled", "by_formula", "cells", "filled_cells")
    sums: dict[str, Any] = {name: sum(getattr(each, name) for each in tables) for name in counts}
    runs = tuple(dict.fromkeys(run for each in tables for run in each.runs))
    return TableCoverage(title, **sums, runs=runs, gaps=tuple(gap for each in tables for gap in each.gaps))


def as_markdown(label: str, tables: Sequence[TableCoverage], *, with_gaps: bool) -> str:
    """Return the coverage of one report as Markdown: its tables, their sum, and commands that fill the gaps."""
    lines = [f"## {label}", "", markdown_table(_HEADER, [_row(each) for each in [*tables, total(tables)]])]
    gaps = [f"- {each.title or 'Table'}: {gap.words}. `{gap.command}`" for each in tables for gap in each.gaps]
    return "\n".join([*lines, *(["", *gaps] if gaps and with_gaps else []), ""])


def _row(each: TableCoverage) -> Labels:
    counts = (each.rows, each.filled, each.by_formula, each.cells, each.filled_cells)
    return (each.title or "table", *map(str, counts), ", ".join(each.runs))


def _of_table(title: str, found: Sequence[Section]) -> TableCoverage:
    settings = [section for section in found if section.title == title and not section.by_formula]
    rows = settings[0].rows
    filled = [any(section.rows[at].own for section in settings) for at in range(len(rows))]
    computed = [section for section in found if section.by_formula and section.title.startswith(f"{title}{SUFFIX}")]
    formula = {row.labels[0] for section in computed for row in section.rows if row.own}
    cells = list(_cells(settings))
    return TableCoverage(
        title=title,
        rows=len(rows),
        filled=sum(filled),
        by_formula=sum(row.labels[0] in formula for row, has in zip(rows, filled, strict=True) if not has),
        cells=len(cells),
        filled_cells=sum(cells),
        runs=tuple(dict.fromkeys(run for section in settings for run in section.runs)),
        gaps=tuple(gap for section in settings for gap in section.gaps),
    )


def _cells(settings: Sequence[Section]) -> Iterator[bool]:
    """Yield whether a run fills a cell, for each printed number and each sentence that numbers can answer."""
    first = settings[0]
    of_words = all(metric is None for metric in first.metrics)
    for at, row in enumerate(first.rows):
        for place, (printed, metric) in enumerate(zip(row.printed, first.metrics, strict=True)):
            if printed and (of_words or metric):
                own = (section.rows[at].own or ("",) * len(first.columns) for section in settings)
                yield any(cells[place] not in ("", _NO_RATIO) for cells in own)
