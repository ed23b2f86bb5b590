"""What an own cell lacks, in words, and the command that measures it.

A cell is open where the report prints something and no chosen run has a number or a status. Ratios and words are not
told: they follow from the cells beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from results.metrics import RATIO_OF
from results.render.markdown import plain
from results.reports.by_formula import needed_mb
from results.reports.layout import Facts, Gap, Grid, Labels, Section
from results.reports.own import OwnNumbers, all_facts, case_fields, own_facts, own_names

_DEPTHS = "2,6"  # numbers of layers that a model is extrapolated from which does not fit
_MEMBERS = 4  # rows that name all implementations of a table
_OF_LATENCY = ("latency_ms", "samples_per_s", "tokens_per_s")  # what extrapolation gives; it gives no memory
_NEVER = ("N/A", "—", "-")  # a printed cell where the report's own system cannot run


def gaps(
    grid: Grid,
    found: Sequence[Section],
    each: Mapping[str, OwnNumbers],
    implementations: Mapping[str, str],
    gpu_memory_mb: float | None = None,
) -> tuple[Gap, ...]:
    """Return why cells of a table are open in all its settings, a reason a gap, and what measures their rows.

    `found` are the sections of that table, `each` the own numbers by run, `implementations` who stands for whom.
    A model that by formula needs more than `gpu_memory_mb` is told apart.
    """
    rows_of: dict[tuple[_Reason, str], dict[Labels, None]] = {}  # by reason and column
    for labels, column, facts in _open_cells(grid, found):
        rows_of.setdefault((_reason(facts, each, implementations, gpu_memory_mb), column), {})[labels] = None
    alike: dict[tuple[str, bool, tuple[Labels, ...]], list[tuple[str, str]]] = {}
    for (reason, column), rows in rows_of.items():
        alike.setdefault((reason.words, reason.extrapolated, tuple(rows)), []).append((reason.about, column))
    everyone = dict.fromkeys(
        name
        for row in found[0].rows[:_MEMBERS]
        for facts in all_facts(grid, row.labels)
        for name in own_names(facts, implementations)
    )
    found_gaps = []
    for (reason, extrapolated, rows), cells in alike.items():
        # Whole rows, as a row is of one run. To be extrapolated, a model needs one in the same run that fits.
        measured = [row.labels for row in found[0].rows] if extrapolated else rows
        facts = [each for row in measured for each in all_facts(grid, row)]
        command = command_of(grid, facts, everyone, {"depths": _DEPTHS} if extrapolated else {})
        found_gaps.append(Gap(_words(reason, rows, cells), command))
    return tuple(found_gaps)


class _Reason(NamedTuple):
    """Why a cell is open."""

    words: str
    about: str = ""  # an implementation
    extrapolated: bool = False  # only so can its number be had


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
    """Return the command that measures some cells of a table; `more` are axes to set besides those of the cells."""
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
    """Return the first run that timed a cell's shape and mode, with whatever implementation; an empty word if none."""
    fields = case_fields(facts)
    for run_id, numbers in each.items():
        for m in numbers.measurements:
            fits = facts.get("mode") in (None, m.mode) and m.metric == "latency_ms"
            if fits and all(getattr(m.case, name) == value for name, value in fields.items()):
                return run_id
    return ""


def _is_too_large(facts: Facts, names: Sequence[str], gpu_memory_mb: float | None) -> bool:
    """Tell whether a model needs more memory by formula than there is, with each of some implementations inside."""
    if facts["level"] != "model" or gpu_memory_mb is None:
        return False
    needed = [needed_mb(facts, name) for name in names]
    return all(need is not None and need > gpu_memory_mb for need in needed)


def _words(reason: str, rows: Sequence[Labels], cells: Sequence[tuple[str, str]]) -> str:
    """Say which cells are open and why; `cells` are whom the reason is about, and in which column."""
    columns, names = dict.fromkeys(column for _, column in cells), dict.fromkeys(name for name, _ in cells if name)
    where = f"{', '.join(columns)} of {', '.join(plain(' '.join(labels)) for labels in rows)}"
    return f"{where}: {' '.join(filter(None, [reason, ', '.join(names)]))}"
