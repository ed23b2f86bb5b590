"""A published report next to your own runs: every table with both numbers, and the findings, as one Markdown text.

`speedups_beside` is the short form: printed and own speedups, shape by shape.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from results import reports
from results.checks import CHECKS, Finding, by_rule, check
from results.files import journal, library
from results.grouping import grouped
from results.records import Measurement, Run, Status
from results.render.markdown import markdown_table, plain
from results.reports import claims, layout
from results.reports.coverage import coverage, gaps, total
from results.reports.derived import SUFFIX, enriched, formula_numbers
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs, environment, printed_rows, quoted, render_report
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)
NOT_MEASURED = "not measured"
_CHIP = re.compile(r"[A-Z]*\d+[A-Z]*")  # A100, H100, A10G, 4060
# Beginnings of metrics that no report prints.
_UNPRINTED = ("error_", "max_error_d", "compile_", "throttled_", "reserved_", "inputs_", "extra_")
_EXAMPLES = 5  # findings shown for each check

Shape = tuple[str, int, int, str]  # dtype, head_dim, seqlen, mode
_FAILED = {Status.OOM: "OOM", Status.OUT_OF_RESOURCES: "shared memory"}
_MODES = {"fwd": "Forward", "bwd": "Backward", "fwd_bwd": "Forward and backward"}


def published(name: str) -> list[tuple[Run, list[Measurement]]]:
    """Return the runs of a published report."""
    return [library.read(folder) for folder in journal.published_folders() if folder.run().report == name]


def sections(
    name: str, printed: Runs, runs: Runs = (), implementations: Mapping[str, str] | None = None
) -> list[layout.Section]:
    """Return every table of a report, paired with the numbers of own runs and the numbers derived from them.

    A table shows one GPU: the one that the report names, or else the one that fills the most rows. Each row comes from
    one run, the one that fills most of it, so a ratio never mixes two runs. `implementations` maps published names to
    own implementations; the default is the report's own map.
    """
    report = reports.get(name)
    chosen = implementations or report.implementations
    declared = {name: facts for run, _ in runs for name, facts in (run.implementations or {}).items()}
    levels = {m.case.level for _, measurements in printed for m in measurements}
    timed = [m for _, own in runs for m in own if m.metric == "latency_ms" and m.value]
    ran = {(m.implementation, m.case): m.run_id for m in timed}
    cases = frozenset(m.case for _, measurements in printed for m in measurements if m.case.seqlen_q)
    numbers = {}
    for run, own in runs:
        near = [m for m in own if m.case.level in levels and not m.metric.startswith(_UNPRINTED)]
        numbers[run.run_id] = OwnNumbers(enriched(run, near), chosen, declared, ran, cases)
    each = {run_id: _sections_of(report, printed, own) for run_id, own in numbers.items()}
    grids = {grid.section: grid for grid in report.grids}
    whole = merged(
        each or {"": _sections_of(report, printed, OwnNumbers((), chosen))},
        {run.run_id: run.gpu_name for run, _ in runs},
        {section: _gpu_of(section, printed) for section in grids},
    )
    memory = max((run.gpu_memory_mb for run, _ in runs if run.gpu_memory_mb), default=None)
    found = []
    for title, settings in whole.items():
        missing = gaps(grids[title], settings, numbers, chosen, memory) if title in grids and numbers else ()
        found += [*settings[:-1], replace(settings[-1], gaps=missing)]
        if title in grids and grids[title] in report.formula_grids:
            found += _formula_sections(grids[title], settings, printed, chosen)
    places = [*whole]
    return sorted(found, key=lambda section: places.index(section.title.partition(SUFFIX)[0]))


def merged(
    each: Mapping[str, Sequence[layout.Section]], gpus: Mapping[str, str | None], printed_on: Mapping[str, str | None]
) -> dict[str, list[layout.Section]]:
    """Return the sections of several runs by title, one for each setting.

    A table shows one GPU: the one that the report names, or else the one whose runs fill the most rows. The settings
    that fill the most rows are kept, and those that fill a row which the others do not.
    `gpus` maps runs to GPUs, `printed_on` maps titles to the GPUs that the report names.
    """
    found: dict[str, dict[str, list[tuple[str, layout.Section]]]] = {}
    for run_id, sections_of_run in each.items():
        for section in sections_of_run:
            found.setdefault(section.title, {}).setdefault(section.setting, []).append((run_id, section))
    whole = {}
    for title, settings in found.items():
        shown = _of_one_gpu([pair for same in settings.values() for pair in same], gpus, printed_on.get(title))
        kept = [[pair for pair in same if pair[0] in shown] for same in settings.values()]
        whole[title] = _fullest([_one_of(same) for same in kept if same])
    return whole


def _of_one_gpu(
    found: Sequence[tuple[str, layout.Section]], gpus: Mapping[str, str | None], printed_on: str | None
) -> set[str]:
    """Return the runs on the GPU that the report names, or else on the one that fills the most rows."""
    rows: dict[str | None, set[layout.Labels]] = {}
    cells: Counter[str | None] = Counter()
    for run_id, section in found:
        own = [row for row in section.rows if row.own]
        rows.setdefault(gpus.get(run_id), set()).update(row.labels for row in own)
        cells[gpus.get(run_id)] += sum(map(_filled, own))
    order = {
        gpu: (bool(of_gpu) and _is_same_chip(gpu, printed_on), len(of_gpu), cells[gpu]) for gpu, of_gpu in rows.items()
    }
    best = max(order, key=order.__getitem__)
    return {run_id for run_id, _ in found if gpus.get(run_id) == best}


def _is_same_chip(ours: str | None, theirs: str | None) -> bool:
    """Return whether two GPU names have the same chip; memory and form factor do not count."""
    chip = _CHIP.search(theirs or "")
    return chip is not None and chip[0] in _CHIP.findall(ours or "")


def _fullest(settings: Sequence[layout.Section]) -> list[layout.Section]:
    filled = {at: {row.labels for row in section.rows if row.own} for at, section in enumerate(settings)}
    order = sorted(filled, key=lambda at: -len(filled[at]))
    kept: list[layout.Section] = []
    seen: set[Any] = set()
    for at in order:
        if not kept or (filled[at] and len(filled[at]) == len(filled[order[0]])) or filled[at] - seen:
            kept.append(settings[at])
            seen |= filled[at]
    return kept


def _one_of(same: Sequence[tuple[str, layout.Section]]) -> layout.Section:
    """Return one section from several of the same setting, with each row from the run that fills most of it.

    A tie goes to the run with the most ranges in its words, then the most cases, then the most cells in the table.
    """
    whole = {run_id: sum(map(_filled, section.rows)) for run_id, section in same}
    rows = []
    for at in range(len(same[0][1].rows)):
        of_row = {run_id: section.rows[at] for run_id, section in same}
        order = {
            run_id: (_filled(row), len(row.cases), sum(row.cases), whole[run_id]) for run_id, row in of_row.items()
        }
        best = max(order, key=order.__getitem__)
        measured = of_row[best].own and not (same[0][1].by_formula or same[0][1].pooled)
        rows.append(replace(of_row[best], run=best) if measured else of_row[best])
    return replace(same[0][1], rows=tuple(rows))


def _filled(row: layout.TableRow) -> int:
    """Return the number of own cells with text in a row."""
    return sum(map(bool, row.own or ()))


def _gpu_of(section: str, printed: Runs) -> str | None:
    """Return the GPU that the report names for a table."""
    of_table = (run for run, rows in printed if any((m.origin or "").startswith(section) for m in rows))
    return next((run.gpu_name for run in of_table), None)


def _formula_sections(
    grid: layout.Grid, settings: Sequence[layout.Section], printed: Runs, chosen: Mapping[str, str]
) -> Iterator[layout.Section]:
    """Yield a table by formula if one of its rows has no own number."""
    rows = settings[0].rows
    if all(any(section.rows[at].own for section in settings) for at in range(len(rows))):
        return
    for section in _sections(grid, printed, formula_numbers(grid, [row.labels for row in rows], chosen)):
        yield replace(section, title=f"{section.title}{SUFFIX}", by_formula=True)


def _sections_of(report: reports.Report, printed: Runs, numbers: OwnNumbers) -> list[layout.Section]:
    found = [section for grid in report.grids for section in _sections(grid, printed, numbers)]
    rows = [m for _, measurements in printed for m in measurements]
    more = report.more_sections(rows, numbers) if report.more_sections else []
    return [*found, claims.section(report.claims, rows, numbers), *more]


def like(store: Store, name: str) -> list[tuple[str, int]]:
    """Return the runs that have shapes of a report, with their number, most first, except its own runs."""
    fields = ("seqlen_q", "head_dim", "dtype", "causal", "batch", "num_heads", "num_kv_heads", "latent_dim")
    same = " AND ".join(f"(theirs.{field} IS NULL OR theirs.{field} = ours.{field})" for field in fields)
    return store.rows(_SQL("like", fields=", ".join(fields), same=same), [name, name])


def pairs(section: layout.Section) -> list[dict[str, Any]]:
    """Return both numbers of every cell as data, and own over printed. Words and missing numbers are None."""
    rows = []
    for row in section.rows:
        for at, (column, metric) in enumerate(zip(section.columns, section.metrics, strict=True)):
            printed, own = layout.number_of(row.printed[at]), layout.number_of(row.own[at] if row.own else None)
            if metric is None or (printed is None and own is None):
                continue
            names = dict(zip(section.labels, map(plain, row.labels), strict=True))
            ratio = own / printed if own and printed else None
            values = {"printed": printed, "own": own, "own / printed": ratio}
            rows.append({**names, "column": column, "metric": metric, **values})
    return rows


def rows_by_run(section: layout.Section) -> str:
    """Return the runs of a section's own rows. Several runs are named with their rows."""
    if not any(section.metrics):
        return ", ".join(section.runs)
    rows = grouped((row for row in section.rows if row.run), attrgetter("run"))
    words = {run: ", ".join(plain(" ".join(row.labels)) for row in of_run) for run, of_run in rows.items()}
    return ", ".join(run if len(rows) == 1 else f"{run} ({of_run})" for run, of_run in words.items())


def both(row: layout.TableRow, at: int) -> str:
    """Return a cell with both numbers: printed / own."""
    return f"{plain(row.printed[at]) or '–'} / {row.own[at] or '–' if row.own else NOT_MEASURED}"


def cell(section: layout.Section, row: layout.TableRow, at: int) -> str:
    """Return a cell with both numbers, or as printed if its column of words has no own text."""
    numbers = any(section.metrics)
    if numbers and section.metrics[at] is None and not any(each.own and each.own[at] for each in section.rows):
        return plain(row.printed[at])
    return both(row, at)


def findings(runs: Runs) -> list[Finding]:
    """Return the findings on the numbers, impossible ones first."""
    weights = {rule.name: at for at, rule in enumerate(CHECKS)}
    return sorted(check(runs), key=lambda finding: weights[finding.rule])


def render(name: str, printed: Runs, own: Runs = (), implementations: Mapping[str, str] | None = None) -> str:
    """Return the report next to own runs as Markdown, with findings and quotes.

    Raises ReportError if the runs have no number for its tables.
    """
    report = reports.get(name)
    implementations = implementations or report.implementations
    found = sections(name, printed, own, implementations)
    if own and not total(coverage(found)).filled:
        names = ", ".join(run.run_id for run, _ in own)
        raise layout.ReportError(
            f"Run {names!r} has no number for the tables of {name}. It needs the report's shapes and "
            f"{', '.join(sorted(set(implementations.values())))}."
        )
    parts = [f"# {report.title}", f"Source: {report.source}"]
    parts += [f"**{run.run_id}** (published)\n\n{environment(run)}" for run, _ in printed]
    parts += [f"**{run.run_id}** (own)\n\n{environment(run)}" for run, _ in own]
    if own:
        parts.append(_explanation(own, found, implementations))
    for section in found:
        parts += [f"## {section.title}"] * bool(section.title)
        parts.append(_table(section, with_own=bool(own) or section.by_formula))
        said = ", ".join(filter(None, [rows_by_run(section), section.setting]))
        parts += [f"Own numbers: {said}."] * bool(section.runs)
        parts += [f"- Not measured: {gap.words}. `{gap.command}`" for gap in section.gaps]
    parts += _findings_parts(findings(printed))
    parts += ["## What the report says in words", *map(quoted, layout.shipped_notes(name))]
    return "\n\n".join(parts) + "\n"


def render_own(name: str, printed: Runs, own: Runs) -> str:
    """Return the report's layout with the numbers of own runs only, followed by their answers to its claims.

    Raises ReportError if the runs have no number for its tables.
    """
    answered = [
        replace(section, rows=tuple(row for row in section.rows if row.own))
        for section in sections(name, printed, own)
        if section.metrics == (None,) and not section.by_formula and any(row.own for row in section.rows)
    ]
    parts = [render_report(name, own)]
    for section in answered:
        parts.append(f"## {section.title}: printed / this run\n\n{_table(section, with_own=True)}\n")
    return "\n".join(parts)


def speedups_beside(
    printed: Sequence[Measurement], own: Sequence[Measurement], *, baseline: str, implementation: str
) -> str:
    """Return a Markdown table for each mode: "printed / own" for every shape of the report, from device times."""
    failed = {_shape(m): _FAILED[m.status] for m in printed if m.metric == "latency_ms" and m.status in _FAILED}
    theirs = {
        _shape(m): f"{m.value:.1f}×" if m.value else failed.get(_shape(m), "—")
        for m in printed
        if m.metric == "speedup" and m.case.seqlen_q and m.case.dtype
    }
    kernel = [m for m in own if m.metric == "latency_ms" and m.timing == "kernel"]
    base = {_shape(m): m.value for m in kernel if m.implementation == baseline}
    ours = {}
    for m in kernel:
        if m.implementation == implementation:
            before = base.get(_shape(m))
            failure = _FAILED.get(m.status, str(m.status))
            ours[_shape(m)] = f"{before / m.value:.1f}×" if before and m.value else failure
    return "\n".join(_beside_table(mode, theirs, ours) for mode in _MODES)


def _sections(grid: layout.Grid, runs: Runs, numbers: OwnNumbers) -> Iterator[layout.Section]:
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
        found = tuple(
            layout.TableRow(key, tuple(cells), ours.get(tuple(map(plain, key)))) for key, cells in theirs.items()
        )
        yield layout.Section(grid.section, setting, labels, columns, metrics, found)


def _metric(grid: layout.Grid, column: Any) -> str | None:
    if isinstance(column, layout.Remark | layout.SpreadColumn):
        return None
    facts = column.facts if isinstance(column, layout.Best) else column
    return {**grid.facts, **facts}.get("metric")


def _table(section: layout.Section, *, with_own: bool) -> str:
    rows = [
        [*row.labels, *(cell(section, row, at) if with_own else row.printed[at] for at in range(len(section.columns)))]
        for row in section.rows
    ]
    return markdown_table((*section.labels, *section.columns), rows)


def _explanation(own: Runs, found: Sequence[layout.Section], implementations: Mapping[str, str]) -> str:
    rows = total(coverage(found))
    has = "the own run has" if len(own) == 1 else "the own runs have"
    said = [
        (f"{run.run_id}: " if len(own) > 1 else "") + OwnNumbers(enriched(run, rows), implementations).explanation()
        for run, rows in own
    ]
    return f"Cells are printed / own; {has} {rows.filled} of {rows.rows} rows. " + "\n\n".join(said)


def _findings_parts(found: Sequence[Finding]) -> Iterator[str]:
    yield f"## Findings: {len(found)}"
    yield "What arithmetic says against the printed numbers (`python -m results check`); every number is kept."
    for rule, of_rule in by_rule(found):
        more = len(of_rule) - _EXAMPLES
        lines = [f"- {finding.sentence}" for finding in of_rule[:_EXAMPLES]] + [f"- and {more} more"] * (more > 0)
        yield "\n".join([f"**{rule.weight}, {rule.title}: {len(of_rule)}**", "", *lines])


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
