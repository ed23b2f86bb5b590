"""The numbers of a slice, of each case all from one run, and what each is against the baseline of that run.

Filters of one value are left to the store, which answers from the rows of results/store/summary.py; the rest is done
here, on about as many rows as a page shows, because planning SQL for it takes longer than doing it. `frame` makes such
rows a table like those that the store answers with: text stays text where all of it is missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from results.counting import standing
from results.grouping import grouped
from results.slice import Filters
from results.sql import SqlFile
from results.store import summary
from results.store.database import Store

_NEVER = timedelta.max  # age of a run without a date: older than all others
_EPOCH = datetime(1970, 1, 1)
_GONE = {"code_age": 2**62, "age": 2**62}  # the ages of a run that was removed in the meantime: it counts last
if TYPE_CHECKING:
    Number = Any  # its fields are the columns of `summary.ANSWERED`
else:
    Number = NamedTuple("Number", [(name, object) for name in summary.ANSWERED])  # a row, with its slice and run


class Outdated(NamedTuple):
    """Cases that are shown of older code, of how many, and the runs of the newer code."""

    cases: int
    of: int
    runs: tuple[str, ...]


class _Standing(NamedTuple):
    """A run of a case; the least counts."""

    key: tuple[int, ...]  # results/counting.py: standing
    run_id: str
    code_age: int
    measured: int  # implementations with a number


class Paired(NamedTuple):
    """A latency, and how it compares with the baseline of its case and run."""

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
    """Return of each case every implementation's row, all of the run that counts (results/counting.py)."""
    rows = numbers(store, filters, [metric], without=without)
    if any(name in without or getattr(filters, name) is None for name in ("mode", "timing")):
        # One number of several modes or timings counts; within each the store holds the best already.
        best: dict[tuple, tuple[tuple, Number]] = {}
        for row in rows:
            place = row.run_id, row.case_id, row.implementation
            age = _NEVER if row.time is None else _EPOCH - row.time  # less for what is later
            rank = (row.status != "ok", age, row.origin is None, row.origin or "", row.mode, row.timing)
            if place not in best or rank < best[place][0]:
                best[place] = rank, row
        rows = [row for _, row in best.values()]
    counting = {case_id: min(found).run_id for case_id, found in _standings(store, rows, filters.baseline).items()}
    return [row for row in rows if counting[row.case_id] == row.run_id]


def outdated(store: Store, filters: Filters) -> Outdated:
    """Return for how many cases newer code has a latency that is not shown, because it has nothing to compare with."""
    standings = _standings(store, numbers(store, filters, ["latency_ms"]), filters.baseline)
    newer = [
        {other.run_id for other in found if other.measured and other.code_age < min(found).code_age}
        for found in standings.values()
    ]
    return Outdated(sum(map(bool, newer)), len(newer), tuple(sorted(set().union(*newer))))


def _standings(store: Store, rows: Iterable[Number], baseline: str | None) -> dict[int, list[_Standing]]:
    """Return the runs of each case; the least counts."""
    ages = {
        run_id: {"code_age": code_age, "age": age}
        for run_id, code_age, age in store.kept("SELECT run_id, code_age, age FROM run_ages")
    }
    found: dict[int, list[_Standing]] = {}
    for (case_id, run_id), rows_of_run in grouped(rows, lambda row: (row.case_id, row.run_id)).items():
        names = {row.implementation for row in rows_of_run if row.status == "ok"}
        ages_of_run = ages.get(run_id, _GONE)
        key = standing(names, baseline, ages_of_run)
        found.setdefault(case_id, []).append(_Standing(key, run_id, ages_of_run["code_age"], len(names)))
    return found


def paired(store: Store, filters: Filters) -> list[Paired]:
    """Return a row a case and implementation, with its speedup and how the baseline ended."""
    return list(store.once(_paired, filters))


_NAMED = ("run_id", "case_id", "implementation", "mode", "timing", "shape")
_CELLS = SqlFile(__file__)("cells", CASE_ID=summary.CASE_ID)


def cells(store: Store, filters: Filters) -> tuple[str, list[object]]:
    """Return the common table `paired`, with its parameters: what `paired` returns, with all columns of `results`."""
    shown = paired(store, filters)
    columns = [[getattr(row.number, name) for row in shown] for name in _NAMED]
    columns += [[row.speedup for row in shown], [row.baseline_status for row in shown]]
    return _CELLS, [*columns, sorted({*columns[0]})]


def _paired(store: Store, filters: Filters) -> tuple[Paired, ...]:
    rows = same_run(store, filters, "latency_ms")
    baselines = {row.case_id: row for row in rows if row.implementation == filters.baseline}
    return tuple(_beside(row, baselines.get(row.case_id)) for row in rows)


def _beside(row: Number, baseline: Number | None) -> Paired:
    if baseline is None:
        return Paired(row, None, None)
    return Paired(row, baseline.value / row.value if baseline.value and row.value else None, baseline.status)


_TEXTS = (
    "dtype", "implementation", "winner", "shape", "mode", "metric", "status", "baseline_status", "note",
    "statistic", "source", "run_id",
)  # fmt: skip
_NUMBERS = (
    "latency_ms", "speedup", "lowest", "highest", "p20", "p80", "value", "reduction", "gpu_memory_mb",
    "peak_memory_mb",
)  # fmt: skip
_KINDS = dict.fromkeys(_TEXTS, "str") | dict.fromkeys(_NUMBERS, "float64")
_KINDS |= {"precision": "object", "tied": "object", "failed": "object"}


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Return the named columns; one that is not known above counts something, and may be missing somewhere."""
    made = {name: _column([row[name] for row in rows], _KINDS.get(name)) for name in columns}
    return pd.DataFrame(made, index=pd.RangeIndex(len(rows)), copy=False)


def _column(values: list[object], kind: str | None) -> pd.Series:
    return pd.Series(values, dtype=kind or ("Int64" if None in values else "int64"))
