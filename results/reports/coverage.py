"""Coverage of published reports: how many rows and cells your runs fill by table, and the gaps.

A gap says why own cells are empty, and the command that measures them. A cell is open if the report prints it and no
chosen run has a number or a status for it. Ratios and words do not count, because they follow from other cells.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from results.metrics import RATIO_OF
from results.render.markdown import markdown_table, plain
from results.reports.derived import SUFFIX, needed_mb
from results.reports.layout import Facts, Gap, Grid, Labels, Section
from results.reports.own import OwnNumbers, all_facts, case_fields, own_facts, own_names

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
    printed = (section for section in found if any(any(row.printed) for row in section.rows))
    titles = dict.fromkeys(section.title for section in printed if not section.by_formula)
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


_DEPTHS = "2,6"  # layers of the two measurements from which a model that does not fit is extrapolated
_MEMBERS = 4  # the first rows have all implementations of a table
_OF_LATENCY = ("latency_ms", "samples_per_s", "tokens_per_s")  # extrapolation gives these, but no memory
_NEVER = ("N/A", "—", "-")  # printed if the report's own system cannot run


def gaps(
    grid: Grid,
    found: Sequence[Section],
    each: Mapping[str, OwnNumbers],
    implementations: Mapping[str, str],
    gpu_memory_mb: float | None = None,
) -> tuple[Gap, ...]:
    """Return the gaps of a table: cells that are open in all settings, grouped by reason, with the command for each.

    `found` has the sections of the table, one for each setting; `each` has the own numbers by run. A model that needs
    more than `gpu_memory_mb` by formula is a separate reason.
    """
    rows_of: dict[tuple[_Reason, str], dict[Labels, None]] = {}  # (reason, column) -> rows
    for labels, column, facts in _open_cells(grid, found):
        rows_of.setdefault((_reason(facts, each, implementations, gpu_memory_mb), column), {})[labels] = None
    groups: dict[tuple[str, bool, tuple[Labels, ...]], list[tuple[str, str]]] = {}
    for (reason, column), rows in rows_of.items():
        groups.setdefault((reason.words, reason.extrapolated, tuple(rows)), []).append((reason.about, column))
    everyone = dict.fromkeys(
        name
        for row in found[0].rows[:_MEMBERS]
        for facts in all_facts(grid, row.labels)
        for name in own_names(facts, implementations)
    )
    found_gaps = []
    for (words, extrapolated, missing), cells in groups.items():
        # Whole rows, because a row comes from one run. Extrapolation needs a model that fits in the same run.
        measured = [row.labels for row in found[0].rows] if extrapolated else list(missing)
        wanted = [each for row in measured for each in all_facts(grid, row)]
        command = command_of(grid, wanted, everyone, {"depths": _DEPTHS} if extrapolated else {})
        found_gaps.append(Gap(_words(words, missing, cells), command))
    return tuple(found_gaps)


class _Reason(NamedTuple):
    """Why a cell is open."""

    words: str
    about: str = ""  # an implementation
    extrapolated: bool = False  # the number can only be extrapolated


def _reason(
    facts: Facts, each: Mapping[str, OwnNumbers], implementations: Mapping[str, str], gpu_memory_mb: float | None
) -> _Reason:
    names = list(own_names({**facts, "baseline": None}, implementations))
    if run_id := _run_of_the_shape(facts, each):
        return _Reason(f"{run_id} has the shape without", names[0])
    if _is_too_large(facts, names, gpu_memory_mb):
        plain_step = "without checkpointing " * (facts["mode"] == "train")
        words = f"{plain_step}by formula more than the {gpu_memory_mb / 1024:.0f} GiB of the GPU with"
        return _Reason(words, names[0], extrapolated=facts["metric"] in _OF_LATENCY)
    return _Reason("no run has the shape")


def command_of(
    grid: Grid, facts: Sequence[Facts], implementations: Iterable[str], more: Mapping[str, str] | None = None
) -> str:
    """Return the command that measures some cells of a table. `more` sets further axes."""
    sweep, axes = grid.measured_by
    sets = {axis: dict.fromkeys(str(each[name]) for each in facts if each.get(name)) for axis, name in axes.items()}
    sets |= {axis: {text: None} for axis, text in (more or {}).items()}
    words = [f"--set {axis}={','.join(values)}" for axis, values in sets.items() if values]
    return " ".join(["python -m runner run", sweep, *words, "--implementations", ",".join(implementations)])


def _open_cells(grid: Grid, found: Sequence[Section]) -> Iterator[tuple[Labels, str, Facts]]:
    if grid.measured_by is None:
        return
    for at, row in enumerate(found[0].rows):
        for place, (name, column) in enumerate(grid.columns.items()):
            owns = [section.rows[at].own for section in found]
            if not isinstance(column, Mapping) or any(own and own[place] for own in owns):
                continue
            facts = own_facts(grid, row.labels, column)
            ratio = facts["metric"] in RATIO_OF and "baseline" in facts
            if not ratio and plain(row.printed[place]) not in _NEVER:
                yield row.labels, name, facts


def _run_of_the_shape(facts: Facts, each: Mapping[str, OwnNumbers]) -> str:
    """Return the first run that timed the shape and mode of a cell with any implementation, or an empty string."""
    fields = case_fields(facts)
    for run_id, numbers in each.items():
        for case, mode in numbers.timed:
            if facts.get("mode") in (None, mode) and all(getattr(case, name) == fields[name] for name in fields):
                return run_id
    return ""


def _is_too_large(facts: Facts, names: Sequence[str], gpu_memory_mb: float | None) -> bool:
    """Return whether a model needs too much memory by formula with each of the implementations."""
    if facts["level"] != "model" or gpu_memory_mb is None:
        return False
    needed = [needed_mb(facts, name) for name in names]
    return all(need is not None and need > gpu_memory_mb for need in needed)


def _words(reason: str, rows: Sequence[Labels], cells: Sequence[tuple[str, str]]) -> str:
    """Return a sentence on the open cells. `cells` has pairs of an implementation and a column."""
    columns, names = dict.fromkeys(column for _, column in cells), dict.fromkeys(name for name, _ in cells if name)
    where = f"{', '.join(columns)} of {', '.join(plain(' '.join(labels)) for labels in rows)}"
    return f"{where}: {' '.join(filter(None, [reason, ', '.join(names)]))}"
