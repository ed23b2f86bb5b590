"""A published report beside an own run: every table with both numbers, what is wrong with either, as one Markdown text.

`speedups_beside` is the short form: the speedups that a report prints beside those of a run, shape by shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from results import reports
from results.checks import CHECKS, Finding, check
from results.files import journal, library
from results.records import Measurement, Run, Status
from results.render.markdown import markdown_table, plain
from results.reports.layout import Best, Grid, Remark, ReportError, Row, Section, SpreadColumn, read_cell
from results.reports.notes import shipped_notes
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs, environment, printed_rows, quoted
from results.store.database import Store

NOT_MEASURED = "not measured"
_EXAMPLES = 5  # findings of one check that are told

Shape = tuple[str, int, int, str]  # dtype, head_dim, seqlen, mode
_FAILED = {Status.OOM: "OOM", Status.OUT_OF_RESOURCES: "shared memory"}
_MODES = {"fwd": "Forward", "bwd": "Backward", "fwd_bwd": "Forward and backward"}


def published(name: str) -> list[tuple[Run, list[Measurement]]]:
    """Return the runs that a report ships as."""
    return [library.read(folder) for folder in journal.published_folders() if folder.run().report == name]


def sections(
    name: str, printed: Runs, own: Sequence[Measurement] = (), implementations: Mapping[str, str] | None = None
) -> list[Section]:
    """Return every table of a report, with an own run's numbers where it has them.

    `implementations` says which own implementation stands in a published one's place; without it the report's choice.
    """
    report = reports.get(name)
    levels = {m.case.level for _, measurements in printed for m in measurements}
    near = [m for m in own if m.case.level in levels]  # a run of the operator says nothing of layers
    numbers = OwnNumbers(near, implementations or report.IMPLEMENTATIONS)
    found = [section for grid in _grids(report) for section in _sections(grid, printed, numbers)]
    return found + (report.more_sections(printed, numbers) if hasattr(report, "more_sections") else [])


def like(store: Store, name: str) -> list[tuple[str, int]]:
    """Return runs that hold shapes of a report, and how many, most first; the report's own are left out."""
    fields = ("seqlen_q", "head_dim", "dtype", "causal", "batch", "num_heads", "num_kv_heads", "latent_dim")
    same = " AND ".join(f"(theirs.{field} IS NULL OR theirs.{field} = ours.{field})" for field in fields)
    shapes = f"SELECT DISTINCT {{}} level, subject, {', '.join(fields)} FROM results WHERE seqlen_q IS NOT NULL AND"
    return store.rows(
        f"""SELECT ours.run_id, count(DISTINCT (theirs)) AS shapes
            FROM ({shapes.format("")} report = ? AND source = 'published') theirs
            JOIN ({shapes.format("run_id,")} report IS DISTINCT FROM ? AND metric = 'latency_ms') ours
              ON theirs.level IS NOT DISTINCT FROM ours.level
             AND theirs.subject IS NOT DISTINCT FROM ours.subject AND {same}
            GROUP BY ALL ORDER BY shapes DESC, run_id DESC""",
        [name, name],
    )


def covered(found: Sequence[Section]) -> tuple[int, int]:
    """Return in how many rows of the report the own run has something, and how many the report has."""
    rows: dict[tuple, bool] = {}
    for section in (section for section in found if not section.by_formula):
        for row in section.rows:
            rows[section.title, row.labels] = rows.get((section.title, row.labels), False) or row.own is not None
    return sum(rows.values()), len(rows)


def pairs(section: Section) -> list[dict[str, object]]:
    """Return both numbers of every cell as data, and own over printed; words and missing numbers stay empty."""
    rows = []
    for row in section.rows:
        for at, (column, metric) in enumerate(zip(section.columns, section.metrics, strict=True)):
            printed, own = _number(row.printed[at]), _number(row.own[at] if row.own else None)
            if metric is None or (printed is None and own is None):
                continue
            names = dict(zip(section.labels, map(plain, row.labels), strict=True))
            ratio = own / printed if own and printed else None
            values = {"printed": printed, "own": own, "own / printed": ratio}
            rows.append({**names, "column": column, "metric": metric, **values})
    return rows


def both(row: Row, at: int) -> str:
    """Return a cell with both numbers: printed / own."""
    return f"{plain(row.printed[at]) or '–'} / {row.own[at] or '–' if row.own else NOT_MEASURED}"


def findings(runs: Runs) -> list[Finding]:
    """Return what arithmetic says against the numbers, impossible ones first."""
    weights = {rule.name: at for at, rule in enumerate(CHECKS)}
    return sorted(check(runs), key=lambda finding: weights[finding.rule])


def render(
    name: str,
    printed: Runs,
    own: tuple[Run, Sequence[Measurement]] | None = None,
    implementations: Mapping[str, str] | None = None,
) -> str:
    """Return the report beside a run as Markdown, with findings and what the report says in words.

    Raises ReportError if the run has nothing for any of its tables.
    """
    report = reports.get(name)
    implementations = implementations or report.IMPLEMENTATIONS
    found = sections(name, printed, own[1] if own else (), implementations)
    if own and not covered(found)[0]:
        raise ReportError(
            f"Run {own[0].run_id!r} has no number for the tables of {name}. It needs the report's shapes and "
            f"{', '.join(sorted(set(implementations.values())))}."
        )
    parts = [f"# {report.TITLE}", f"Source: {report.SOURCE}"]
    parts += [f"**{run.run_id}** (published)\n\n{environment(run)}" for run, _ in printed]
    if own:
        parts += [f"**{own[0].run_id}** (own)\n\n{environment(own[0])}", _explanation(own[1], found, implementations)]
    for section in found:
        parts += [f"## {section.title}"] * bool(section.title) + [f"Own run: {section.setting}."] * bool(
            section.setting
        )
        parts.append(_table(section, with_own=own is not None))
    parts += _findings_parts(findings(printed))
    parts += ["## What the report says in words", *map(quoted, shipped_notes(name))]
    return "\n\n".join(parts) + "\n"


def speedups_beside(
    printed: Sequence[Measurement], own: Sequence[Measurement], *, baseline: str, implementation: str
) -> str:
    """Return a Markdown table a mode: "printed / own" for every shape of the report, device time for the own run."""
    theirs = _printed(printed)
    ours = _derived(own, baseline, implementation)
    return "\n".join(_beside_table(mode, theirs, ours) for mode in _MODES)


def _grids(report: ModuleType) -> Sequence[Grid]:
    return report.GRIDS if hasattr(report, "GRIDS") else (report.GRID,)


def _sections(grid: Grid, runs: Runs, numbers: OwnNumbers) -> Iterator[Section]:
    labels, columns = grid.header[: grid.labels], grid.header[grid.labels :]
    theirs = printed_rows(grid, runs)
    metrics = tuple(_metric(grid, column) for column in grid.columns.values())
    names = {own: theirs for theirs, own in numbers.implementations.items()}  # a label can be an implementation's name
    tables = list(numbers.tables(grid)) or [("", [])]
    for setting, rows in tables if theirs else ():
        ours = {
            tuple(names.get(plain(label), plain(label)) for label in row[: grid.labels]): tuple(row[grid.labels :])
            for row in rows
        }
        found = tuple(Row(key, tuple(cells), ours.get(tuple(map(plain, key)))) for key, cells in theirs.items())
        yield Section(grid.section, setting, labels, columns, metrics, found)


def _metric(grid: Grid, column: object) -> str | None:
    if isinstance(column, Remark | SpreadColumn):
        return None
    says = column.says if isinstance(column, Best) else column
    return {**grid.says, **says}.get("metric")


def _number(cell: str | None) -> float | None:
    if not cell:
        return None
    try:
        return read_cell(plain(cell)).value
    except ReportError:  # words
        return None


def _table(section: Section, *, with_own: bool) -> str:
    rows = [
        [*row.labels, *(both(row, at) if with_own else row.printed[at] for at in range(len(section.columns)))]
        for row in section.rows
    ]
    return markdown_table((*section.labels, *section.columns), rows)


def _explanation(own: Sequence[Measurement], found: Sequence[Section], implementations: Mapping[str, str]) -> str:
    rows, all_rows = covered(found)
    said = OwnNumbers(own, implementations).explanation()
    return f"Cells are printed / own; the own run has {rows} of {all_rows} rows. {said}"


def _findings_parts(found: Sequence[Finding]) -> Iterator[str]:
    counts = Counter(finding.rule for finding in found)
    yield f"## Findings: {len(found)}"
    yield "What arithmetic says against the printed numbers (`python -m results check`); every number is kept."
    for rule in CHECKS:
        of_rule = [finding for finding in found if finding.rule == rule.name]
        if of_rule:
            more = counts[rule.name] - _EXAMPLES
            lines = [f"- {finding.sentence}" for finding in of_rule[:_EXAMPLES]] + [f"- and {more} more"] * (more > 0)
            yield "\n".join([f"**{rule.weight}, {rule.title}: {counts[rule.name]}**", "", *lines])


def _printed(measurements: Sequence[Measurement]) -> dict[Shape, str]:
    cells = {}
    failures = {_shape(m): _FAILED[m.status] for m in measurements if m.metric == "latency_ms" and m.status in _FAILED}
    for m in measurements:
        if m.metric == "speedup" and m.case.seqlen_q and m.case.dtype:
            cells[_shape(m)] = f"{m.value:.1f}×" if m.value else failures.get(_shape(m), "—")
    return cells


def _derived(measurements: Sequence[Measurement], baseline: str, implementation: str) -> dict[Shape, str]:
    kernel = [m for m in measurements if m.metric == "latency_ms" and m.timing == "kernel"]
    base = {_shape(m): m.value for m in kernel if m.implementation == baseline}
    cells = {}
    for m in kernel:
        if m.implementation == implementation:
            before = base.get(_shape(m))
            cells[_shape(m)] = (
                f"{before / m.value:.1f}×" if before and m.value else _FAILED.get(m.status, str(m.status))
            )
    return cells


def _beside_table(mode: str, theirs: Mapping[Shape, str], ours: Mapping[Shape, str]) -> str:
    shapes = [shape for shape in theirs if shape[3] == mode]
    seqlens = sorted({shape[2] for shape in shapes})
    head = [_MODES[mode], *map(str, seqlens)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for dtype, head_dim in sorted({shape[:2] for shape in shapes}):
        cells = [(dtype, head_dim, seqlen, mode) for seqlen in seqlens]
        texts = [f"{theirs.get(cell, '—')} / {ours.get(cell, 'not measured')}" for cell in cells]
        lines.append(f"| {dtype}, {head_dim} | {' | '.join(texts)} |")
    return "\n".join([*lines, ""])


def _shape(measurement: Measurement) -> Shape:
    case = measurement.case
    return (case.dtype or "", case.head_dim or 0, case.seqlen_q or 0, measurement.mode or "")
