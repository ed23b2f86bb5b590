"""Speed over a slice: every cell, and how the implementations rank. Small tables, made from paired rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from results.derive import geometric_mean
from results.grouping import grouped
from results.implementations import Declared, facts_of
from results.levels import level_of
from results.query.declared import of_rows
from results.query.pairing import Paired, frame, paired
from results.slice import Filters, best_baseline, level_in
from results.store.database import Store

FAILURES = ("oom", "out_of_resources", "unsupported", "incorrect", "timeout", "error")
_P80_OF_NORMAL = 0.8416  # standard deviations; where only that is known, the same interval of a normal distribution
_CELL = (
    "implementation", "cases", "measured", "compared", "status", "note", "baseline_status", "latency_ms",
    "speedup", "p20", "p80", "n", "statistic", "source", "run_id",
)  # fmt: skip
_RANKED = (
    "implementation", "precision", "speedup", "lowest", "highest", "compared", "measured", "cases", "failures",
    *FAILURES, "skipped", "longest", "first_oom", "statistic",
)  # fmt: skip


def cells(store: Store, filters: Filters) -> list[dict[str, Any]]:
    """Return every cell and implementation, in order: latency, speedup, status.

    A cell is a dtype and a place on the axes of the slice's level (`cell_columns`). One that holds several shapes
    carries geometric means over them, `cases` says how many. What a source did not say comes last.
    """
    level = level_in(filters)
    names = (*cell_columns(filters), "implementation")
    rows = [row for row in paired(store, filters) if level_of(row.number.level).rows == level.rows]
    groups = grouped(rows, lambda row: tuple(getattr(row.number, name) for name in names))
    order = sorted(groups, key=lambda key: [(part is None, part) for part in key])
    return [dict(zip(names, key, strict=True)) | _cell(groups[key]) for key in order]


def cell_columns(filters: Filters) -> tuple[str, str, str]:
    """Return the columns that name a cell of the slice: dtype and the axes of its level."""
    level = level_in(filters)
    return "dtype", level.columns.column, level.rows.column


def grid(store: Store, filters: Filters) -> pd.DataFrame:
    """Return the cells as a table."""
    return frame(cells(store, filters), (*cell_columns(filters), *_CELL))


def ranked(store: Store, filters: Filters) -> list[dict[str, Any]]:
    """Return every implementation over the slice, best first: mean speedup, coverage, failures, how far it goes."""
    rows = paired(store, filters)
    cases, said = len({row.number.case_id for row in rows}), of_rows(store, level_in(filters).name)
    found = [
        _ranked(name, said, of_it, cases)
        for name, of_it in grouped(rows, lambda row: row.number.implementation).items()
    ]
    return sorted(found, key=lambda row: (row["speedup"] is None, -(row["speedup"] or 0), row["implementation"]))


def usable_baseline(store: Store, filters: Filters) -> str | None:
    """Return the baseline of a slice: the chosen one if anything can be compared with it, else the best one there."""
    rows = paired(store, filters)
    if any(row.speedup is not None and row.number.implementation != filters.baseline for row in rows):
        return filters.baseline
    timed = [row.number for row in rows if row.number.value is not None]
    by_name = grouped(timed, lambda number: number.implementation).items()
    return best_baseline({name: {n.case_id: n.value for n in of_it} for name, of_it in by_name}) or filters.baseline


def ranking(store: Store, filters: Filters) -> pd.DataFrame:
    """Return the ranked implementations as a table."""
    return frame(ranked(store, filters), _RANKED)


def _ranked(name: str, said: Declared, rows: Sequence[Paired], cases: int) -> dict[str, object]:
    speedups = [row.speedup for row in rows if row.speedup is not None]
    statuses = Counter(row.number.status for row in rows)
    precisions = (facts_of(name, said, run_id).precision for run_id in sorted({row.number.run_id for row in rows}))
    return {
        "implementation": name,
        "precision": next(filter(None, precisions), None),  # reduced if it is in any run
        "speedup": geometric_mean(speedups),
        "lowest": min(speedups, default=None),
        "highest": max(speedups, default=None),
        "compared": len(speedups),
        "measured": sum(row.number.value is not None for row in rows),
        "cases": cases,
        "failures": len(rows) - statuses["ok"] - statuses["skipped"],
        **{status: statuses[status] for status in (*FAILURES, "skipped")},
        "longest": max(_seqlens(rows, "ok"), default=None),
        "first_oom": min(_seqlens(rows, "oom"), default=None),
        "statistic": _listed(row.number.statistic for row in rows),
    }


def _cell(rows: Sequence[Paired]) -> dict[str, object]:
    numbers = [row.number for row in rows]
    latencies = [number.value for number in numbers if number.value is not None]
    failed = Counter(number.status for number in numbers).most_common(1)[0][0]
    speedups = [row.speedup for row in rows if row.speedup is not None]
    return {
        "cases": len(rows),
        "measured": len(latencies),
        "compared": len(speedups),
        "status": "ok" if latencies else failed,
        "note": next((number.note for number in numbers if number.status != "ok" and number.note is not None), None),
        "baseline_status": max((row.baseline_status for row in rows if row.baseline_status is not None), default=None),
        "latency_ms": geometric_mean(latencies),
        "speedup": geometric_mean(speedups),
        "p20": geometric_mean(_ends([(n.p20, n.value, n.std) for n in numbers], -_P80_OF_NORMAL)),
        "p80": geometric_mean(_ends([(n.p80, n.value, n.std) for n in numbers], _P80_OF_NORMAL)),
        "n": min((number.n for number in numbers if number.n is not None), default=None),
        "statistic": next((number.statistic for number in numbers if number.statistic is not None), None),
        "source": _listed(number.source for number in numbers),
        "run_id": _listed(number.run_id for number in numbers),
    }


def _ends(known: Iterable[tuple], deviations: float) -> list[float]:
    """Return one end of the spread of each number that has one."""
    ends = []
    for said, value, std in known:
        if said is None and None not in (value, std):
            said = value + deviations * std
            said = said if said > 0 else None
        if said is not None:
            ends.append(said)
    return ends


def _seqlens(rows: Iterable[Paired], status: str) -> list[int]:
    return [row.number.seqlen for row in rows if row.number.status == status and row.number.seqlen is not None]


def _listed(texts: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({text for text in texts if text is not None})) or None
