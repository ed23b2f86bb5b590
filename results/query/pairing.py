"""The numbers of a slice, of each case all from one run, and what each is against the baseline of that run.

Filters of one value are left to the store, which answers from the rows of results/store/summary.py; the rest is done
here, on about as many rows as a page shows, because planning SQL for it takes longer than doing it. `frame` makes such
rows a table like those that the store answers with: text stays text where all of it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

import pandas as pd

from results.slice import NEWEST_FIRST, Filters
from results.store import summary
from results.store.database import Store

_NEVER = timedelta.max  # of a run that does not say when it was made: older than any
_EPOCH = datetime(1970, 1, 1)
Row = TypeVar("Row")


Number = NamedTuple(
    "Number", [(name, object) for name in summary.ANSWERED]
)  # a row of `numbers`, with its slice and run


class Paired(NamedTuple):
    """A latency beside the baseline of its case and run."""

    number: Number
    speedup: float | None
    baseline_status: str | None


def numbers(store: Store, filters: Filters, metrics: Sequence[str], *, without: tuple[str, ...] = ()) -> list[Number]:
    """Return the rows of a slice; implementations always keep the baseline."""
    sql, params = summary.numbers(filters, metrics, without=without)
    found: Iterable[Number] = map(Number._make, store.kept(sql, params))
    for name in ("dtype", "head_dim", "batch", "num_heads", "seqlen", "implementation"):
        wanted = getattr(filters, name)
        if wanted and name not in without:
            wanted = {*wanted, filters.baseline} if name == "implementation" else {*wanted}
            found = [row for row in found if getattr(row, name) in wanted]
    return list(found)


def same_run(store: Store, filters: Filters, metric: str, *, without: tuple[str, ...] = ()) -> list[Number]:
    """Return of each case every implementation's row, all of the run that counts (results/slice.py: counting_run)."""
    rows = numbers(store, filters, [metric], without=without)
    if any(name in without or getattr(filters, name) is None for name in ("mode", "timing")):
        rows = _one_each(rows)
    ages = {run_id: age for age, (run_id,) in enumerate(store.kept(f"SELECT run_id FROM runs ORDER BY {NEWEST_FIRST}"))}
    runs: dict[tuple[int, str], tuple] = {}
    for row in rows:
        has_baseline = row.implementation == filters.baseline and row.status == "ok"
        rank = (not has_baseline, ages.get(row.run_id, len(ages)), row.run_id)  # gone meanwhile: oldest
        place = row.case_id, row.run_id
        runs[place] = min(rank, runs.get(place, rank))
    latest: dict[int, tuple] = {}
    for (case_id, _), rank in runs.items():
        latest[case_id] = min(rank, latest.get(case_id, rank))
    return [row for row in rows if latest[row.case_id][2] == row.run_id]


def paired(store: Store, filters: Filters) -> list[Paired]:
    """Return a row a case and implementation, with its speedup and how the baseline ended."""
    rows = same_run(store, filters, "latency_ms")
    baselines = {row.case_id: row for row in rows if row.implementation == filters.baseline}
    return [_beside(row, baselines.get(row.case_id)) for row in rows]


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict[Hashable, list[Row]]:
    """Return the rows by what they have in common."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _beside(row: Number, baseline: Number | None) -> Paired:
    if baseline is None:
        return Paired(row, None, None)
    return Paired(row, baseline.value / row.value if baseline.value and row.value else None, baseline.status)


def _one_each(rows: list[Number]) -> list[Number]:
    """Return one number of several modes or timings; within each the store holds the best already."""
    best: dict[tuple, tuple[tuple, Number]] = {}
    for row in rows:
        place = row.run_id, row.case_id, row.implementation
        rank = (row.status != "ok", _age(row.time), row.origin is None, row.origin or "", row.mode, row.timing)
        if place not in best or rank < best[place][0]:
            best[place] = rank, row
    return [row for _, row in best.values()]


def _age(time: datetime | None) -> timedelta:
    """Return how old a time is: less for what is later."""
    return _NEVER if time is None else _EPOCH - time


_TEXTS = (
    *("dtype", "implementation", "winner", "shape", "mode", "metric", "status", "baseline_status", "note"),
    *("statistic", "source", "run_id"),
)
_NUMBERS = (
    *("latency_ms", "speedup", "lowest", "highest", "p20", "p80", "value", "reduction", "gpu_memory_mb"),
    "peak_memory_mb",
)
_KINDS = dict.fromkeys(_TEXTS, "str") | dict.fromkeys(_NUMBERS, "float64")
_KINDS |= {"precision": "object", "tied": "object", "failed": "object"}


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Return the named columns; one that is not known above counts something, and may be missing somewhere."""
    made = {name: _column([row[name] for row in rows], _KINDS.get(name)) for name in columns}
    return pd.DataFrame(made, index=pd.RangeIndex(len(rows)), copy=False)


def _column(values: list[object], kind: str | None) -> pd.Series:
    return pd.Series(values, dtype=kind or ("Int64" if None in values else "int64"))
