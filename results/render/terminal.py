"""Comparisons and findings as plain text for a terminal."""

from collections.abc import Iterator, Sequence

from results.checks import Finding, by_rule
from results.compare.compare import ComparedCell, Comparison, Mean, TimingCoverage
from results.levels import level_of
from results.records import Run


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the changes, the means with their coverage, then every cell, regressions first."""
    yield f"first   {comparison.first}"
    yield f"second  {comparison.second}"
    yield ""
    if comparison.same_run:
        yield "One run: one machine, one software."
    elif comparison.changes:
        yield "What changed"
        rows = [(c.fact, stated(c.first), "->", stated(c.second)) for c in comparison.changes]
        yield from _columns(rows)
    else:
        yield "What changed: nothing that the runs record."
    if comparison.not_said:
        yield f"Not recorded in either: {', '.join(comparison.not_said)}."
    yield from comparison.remarks
    yield ""
    yield "Geometric mean of the speedups: first over second, above 1 the second is faster"
    header = ("timing", "implementation", "mode", "speedup", "shapes", "verdicts", "could have seen")
    yield from _columns([header, *(_mean_row(mean) for mean in comparison.means)])
    yield from (coverage_words(coverage) for coverage in comparison.coverage)
    if comparison.cells:
        yield ""
        of_cells = ("verdict", "speedup", "90 % interval", "seen from", "first", "second", "shape", "why")
        yield from _columns([of_cells, *(_cell_row(cell) for cell in comparison.cells)])


def coverage_words(coverage: TimingCoverage) -> str:
    """Return the number of compared shapes of a timing and of the others; zeros are left out."""
    others = {
        "lost": coverage.lost,
        "gained": coverage.gained,
        "without a number on either side": coverage.neither,
        "only in the first": coverage.only_first,
        "only in the second": coverage.only_second,
    }
    parts = [f"{count} {where}" for where, count in others.items() if count]
    timing = f"{coverage.timing} time" if coverage.timing else "time as published"
    compared = f"{coverage.both} shape{'s' * (coverage.both != 1)} compared in {timing}"
    return " · ".join([compared, *parts]) + "."


def finding_lines(findings: Sequence[Finding], runs: Sequence[Run], *, every: bool = False) -> Iterator[str]:
    """Yield a line for each report or run and each rule: the number of findings and the first one, or all below."""
    places = {run.run_id: run.report if run.source == "published" and run.report else run.run_id for run in runs}
    for place in dict.fromkeys(places.values()):
        there = [finding for finding in findings if places[finding.run_id] == place]
        yield f"{place}: {len(there)} finding{'' if len(there) == 1 else 's'}"
        for rule, found in by_rule(there):
            line = f"  {rule.weight}, {rule.title} ({rule.name}): {len(found)}"
            yield line if every else f"{line}, as: {found[0].sentence}"
            yield from (f"    - {finding.sentence}" for finding in found if every)


def _mean_row(mean: Mean) -> tuple[str, ...]:
    return (
        mean.timing or "not stated",
        mean.implementation or "all",
        mean.mode or "all",
        f"{mean.speedup:.3f}×" if mean.speedup else "-",
        f"{mean.compared} of {mean.tried}",
        ", ".join(f"{count} {outcome}" for outcome, count in mean.outcomes.items()) or "-",
        f"{_change(mean.detectable)} in half of them" if mean.detectable is not None else "-",
    )


def _cell_row(cell: ComparedCell) -> tuple[str, ...]:
    found = cell.judgement
    return (
        cell.outcome,
        f"{found.speedup:.3f}×" if found and found.speedup else "-",
        f"{found.low:.4g} to {found.high:.4g}" if found and found.low is not None else "-",
        _change(found.detectable) if found and found.detectable is not None else "-",
        _time(cell.first.value, str(cell.first.status)),
        _time(cell.second.value, str(cell.second.status)),
        " ".join(
            word for word in (cell.implementation, cell.mode, cell.timing, level_of(cell.case).short(cell.case)) if word
        ),
        cell.reason,
    )


def _time(value: float | None, status: str) -> str:
    return status if value is None else f"{value:.4g} ms"


def _change(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 1 else f"{1 + share:.3g}×" if share < 9 else "10× or more"


def stated(value: object) -> str:
    """Return a fact of a run in words."""
    return "not stated" if value is None else str(value)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with aligned columns; the last column is not padded."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
