"""Reports as Markdown: the published cells as printed, or your own numbers in the same tables."""

from collections.abc import Mapping, Sequence

from results import reports
from results.records import Measurement, Run
from results.render.markdown import markdown_table
from results.reports.layout import Grid, Labels, Note, Remark, ReportError, SpreadColumn, origins, shipped_notes
from results.reports.own import OwnNumbers

Runs = Sequence[tuple[Run, Sequence[Measurement]]]


def render_report(name: str, runs: Runs) -> str:
    """Return a report from its own runs as printed, or its tables with the numbers of other runs.

    Raises ReportError if the runs have no number for these tables.
    """
    report = reports.get(name)
    if all(run.report == name and run.source == "published" for run, _ in runs):
        parts = [f"# {report.title}", f"Source: {report.source}", "\n".join(environment(run) for run, _ in runs)]
        for grid in report.grids:
            if rows := printed_rows(grid, runs):
                parts += [f"## {grid.section}"] * bool(grid.section)
                parts.append(markdown_table(grid.header, [[*labels, *cells] for labels, cells in rows.items()]))
        return "\n\n".join([*parts, *map(quoted, shipped_notes(name))]) + "\n"
    parts = [f"# {report.title}"]
    for run, measurements in runs:
        parts += [f"The layout of the published report with the numbers of run {run.run_id}.", environment(run)]
        parts += _own_parts(measurements, report.grids, report.implementations)
    return "\n\n".join(parts) + "\n"


def environment(run: Run) -> str:
    """Return the machine and the versions of a run, as bullets."""
    facts = {
        "GPU": run.gpu_name or "not stated",
        "CUDA": run.cuda,
        "PyTorch": run.torch,
        "Triton": run.triton,
        "Driver": run.driver,
        "Created": run.created,
    }
    return "\n".join(f"- **{label}**: {fact}" for label, fact in facts.items() if fact)


def printed_rows(grid: Grid, runs: Runs) -> dict[Labels, list[str]]:
    """Return the rows of a published table as printed, by their labels; none if these runs do not have the table."""
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
    """Return a note of a report under its heading."""
    heading = f"## {note.section}\n\n" if note.section else ""
    return heading + ("\n".join(note.lines) if note.lines else markdown_table(note.header, note.rows))


def _printed_row(grid: Grid, found: Mapping[str, Measurement]) -> list[str]:
    cells: list[str] = []
    spread = ""
    for name, facts in grid.columns.items():
        if isinstance(facts, Remark):
            note = next(iter(found.values())).note or ""
            cells.append(note.rpartition(f"{name}: ")[2])
        elif isinstance(facts, SpreadColumn):
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
