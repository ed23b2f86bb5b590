"""Reports back as Markdown: published cells to the letter, or the numbers of an own run in the same tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from results.records import Measurement, Run
from results.render.markdown import markdown_table
from results.reports.layout import Grid, Labels, Remark, ReportError, SpreadColumn, origins
from results.reports.notes import Note, shipped_notes
from results.reports.own import OwnNumbers

Runs = Sequence[tuple[Run, Sequence[Measurement]]]


def render_report(
    runs: Runs, *, name: str, title: str, source: str, grids: Sequence[Grid], implementations: Mapping[str, str]
) -> str:
    """Return the report from its own runs as printed, or from another run's numbers in its tables.

    `implementations` says which own implementation stands in a published one's place.
    Raises ReportError if the runs hold nothing for these tables.
    """
    if all(run.report == name and run.source == "published" for run, _ in runs):
        parts = [f"# {title}", f"Source: {source}", "\n".join(environment(run) for run, _ in runs)]
        parts += [*_printed_parts(runs, grids), *map(quoted, shipped_notes(name))]
        return "\n\n".join(parts) + "\n"
    parts = [f"# {title}"]
    for run, measurements in runs:
        parts += [f"The layout of the published report with the numbers of run {run.run_id}.", environment(run)]
        parts += _own_parts(measurements, grids, implementations)
    return "\n\n".join(parts) + "\n"


def environment(run: Run) -> str:
    """Return where a run was taken, as bullets."""
    facts = {
        "GPU": run.gpu_name or "not stated",
        "CUDA": run.cuda,
        "PyTorch": run.torch,
        "Triton": run.triton,
        "Driver": run.driver,
        "Created": run.created,
    }
    return "\n".join(f"- **{label}**: {fact}" for label, fact in facts.items() if fact)


def _printed_parts(runs: Runs, grids: Sequence[Grid]) -> list[str]:
    parts = []
    for grid in grids:
        rows = printed_rows(grid, runs)
        parts += [f"## {grid.section}"] * bool(rows and grid.section)
        parts += [markdown_table(grid.header, [[*labels, *cells] for labels, cells in rows.items()])] * bool(rows)
    return parts


def printed_rows(grid: Grid, runs: Runs) -> dict[Labels, list[str]]:
    """Return the rows of a published table to the letter, by their labels; none if these runs do not hold it."""
    by_origin = {m.origin: m for _, measurements in runs for m in measurements}
    names: dict[Labels, None] = dict.fromkeys(grid.rows)
    for measurement in by_origin.values() if grid.name else ():
        if (measurement.origin or "").startswith(grid.section) and " / " in (measurement.origin or ""):
            names[grid.name(measurement)] = None
    rows = {}
    for labels in names:
        found = {name: by_origin[at] for name, at in origins(grid, labels).items() if at in by_origin}
        if found:
            rows[labels] = _printed_row(grid, found)
    return rows


def quoted(note: Note) -> str:
    """Return words of a report under their heading."""
    heading = f"## {note.section}\n\n" if note.section else ""
    return heading + ("\n".join(note.lines) if note.lines else markdown_table(note.header, note.rows))


def _printed_row(grid: Grid, found: Mapping[str, Measurement]) -> list[str]:
    cells: list[str] = []
    spread = ""
    for name, says in grid.columns.items():
        if isinstance(says, Remark):
            note = next(iter(found.values())).note or ""
            cells.append(note.rpartition(f"{name}: ")[2])
        elif isinstance(says, SpreadColumn):
            cells.append(spread)
        else:
            cell, _, spread = (found[name].printed or "" if name in found else "").partition(" | ")
            cells.append(cell)
    return cells


def _own_parts(
    measurements: Sequence[Measurement], grids: Sequence[Grid], implementations: Mapping[str, str]
) -> list[str]:
    numbers = OwnNumbers(measurements, implementations)
    parts = [f"**Settings**: {numbers.settings()}", numbers.explanation()]
    for grid in grids:
        for settings, rows in numbers.tables(grid):
            parts += [f"## As in: {grid.section}"] * bool(grid.section) + [settings] * bool(settings)
            parts.append(markdown_table(grid.header, rows))
    if len(parts) == 2:
        wanted = sorted({grid.section for grid in grids if grid.section})
        raise ReportError(
            f"The run has no number for this report's tables ({'; '.join(wanted) or 'one table'}). "
            f"It needs the cases of the report and {', '.join(sorted(set(implementations.values())))}."
        )
    return parts
