"""What an own cell lacks, in words, and the command that measures it.

A cell is open where the report prints something and no chosen run has a number or a status. Ratios and words are not
told: they follow from the cells beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from results.metrics import RATIO_OF
from results.render.markdown import plain
from results.reports.layout import Gap, Grid, Labels, Says, Section
from results.reports.own import OwnNumbers, own_says, said_fields

_MEMBERS = 4  # rows that name all implementations of a table
_NEVER = ("N/A", "—", "-")  # a printed cell where the report's own system cannot run


def gaps(
    grid: Grid, found: Sequence[Section], each: Mapping[str, OwnNumbers], implementations: Mapping[str, str]
) -> tuple[Gap, ...]:
    """Return why cells of a table are open in all its settings, a reason a gap.

    `found` are the sections of that table, `each` the own numbers by run, `implementations` who stands for whom.
    """
    open_in: dict[tuple[str, str, str], dict[Labels, Says]] = {}  # by run that has the shape, who it lacks, column
    for labels, column, says in _open_cells(grid, found):
        run_id = _run_of_the_shape(says, each)
        lacking = next(own_names({**says, "baseline": None}, implementations)) if run_id else ""
        open_in.setdefault((run_id, lacking, column), {})[labels] = says
    alike: dict[tuple[str, tuple[Labels, ...]], list[tuple[str, str]]] = {}
    for (run_id, lacking, column), rows in open_in.items():
        alike.setdefault((run_id, tuple(rows)), []).append((lacking, column))
    everyone = dict.fromkeys(
        name
        for row in found[0].rows[:_MEMBERS]
        for says in all_said(grid, row.labels)
        for name in own_names(says, implementations)
    )
    return tuple(
        Gap(
            _words(run_id, rows, cells),
            command_of(
                grid, [open_in[run_id, lacking, column][row] for lacking, column in cells for row in rows], everyone
            ),
        )
        for (run_id, rows), cells in alike.items()
    )


def command_of(grid: Grid, says: Sequence[Says], implementations: Iterable[str]) -> str:
    """Return the command that measures some cells of a table, which a sweep measures."""
    sweep, axes = grid.measured_by
    sets = {axis: dict.fromkeys(str(each[name]) for each in says if each.get(name)) for axis, name in axes.items()}
    words = [f"--set {axis}={','.join(values)}" for axis, values in sets.items() if values]
    return " ".join(["python -m runner run", sweep, *words, "--implementations", ",".join(implementations)])


def own_names(says: Says, implementations: Mapping[str, str]) -> Iterator[str]:
    """Yield who may stand for the implementation of a cell, and for its baseline."""
    places = says.get("places", {})
    for name in (says.get("baseline"), says.get("implementation")):
        if name:
            yield from places.get(name) or (implementations.get(name, name),)


def all_said(grid: Grid, labels: Labels) -> Iterator[Says]:
    """Yield what is said of every own cell with a number of a row."""
    return (own_says(grid, labels, column) for column in grid.columns.values() if isinstance(column, Mapping))


def _open_cells(grid: Grid, found: Sequence[Section]) -> Iterator[tuple[Labels, str, Says]]:
    if grid.measured_by is None:
        return
    for at, row in enumerate(found[0].rows):
        for place, (name, column) in enumerate(grid.columns.items()):
            owns = [section.rows[at].own for section in found]
            if not isinstance(column, Mapping) or any(own and own[place] for own in owns):
                continue
            says = own_says(grid, row.labels, column)
            ratio = says["metric"] in RATIO_OF and "baseline" in says
            if not ratio and plain(row.printed[place]) not in _NEVER:
                yield row.labels, name, says


def _run_of_the_shape(says: Says, each: Mapping[str, OwnNumbers]) -> str:
    """Return the first run that timed a cell's shape and mode, with whatever implementation; an empty word if none."""
    fields = said_fields(says)
    for run_id, numbers in each.items():
        for m in numbers.measurements:
            fits = says.get("mode") in (None, m.mode) and m.metric == "latency_ms"
            if fits and all(getattr(m.case, name) == value for name, value in fields.items()):
                return run_id
    return ""


def _words(run_id: str, rows: Sequence[Labels], cells: Sequence[tuple[str, str]]) -> str:
    """Say which cells are open and why; `cells` are who is lacking, and in which column."""
    columns = dict.fromkeys(column for _, column in cells)
    where = f"{', '.join(columns)} of {', '.join(plain(' '.join(labels)) for labels in rows)}"
    if not run_id:
        return f"{where}: no run has the shape"
    return f"{where}: {run_id} has the shape without {', '.join(dict.fromkeys(name for name, _ in cells))}"
