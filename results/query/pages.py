"""The questions that the pages ask of the store, each answered with a small table."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from results import levels
from results.grouping import grouped
from results.metrics import MEMORY_METRICS
from results.query.pairing import cells, frame, numbers, paired, same_run
from results.records import CASE_FIELDS, Measurement
from results.slice import Filters, level_in, of_mask, where
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

# Filters that apply to every number, and their columns.
_COLUMN_OF = {"run": "run_id", "source": "source", "level": "level", "workload": "workload", "mask": "mask"}
_SCOPE = {name: name for name in ("gpu", "level", "workload", "mask")}
_SIZES = ("seqlen", "head_dim", "batch", "num_heads")
_OF_MEMORY = (
    "implementation", "shape", "seqlen", "value", "status", "note", "run_id", "source", "gpu_memory_mb", "mode",
    "dtype", "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v",
)  # fmt: skip


_SAID_OF_CELL = (
    "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "dtype", "causal",
    "window_size", "level", "page_size", "latent_dim",
)  # fmt: skip
_REST_OF_CASE = ", ".join(name for name in CASE_FIELDS if name not in _SAID_OF_CELL)
_KIND_OF_IMPORT = "level, head_dim, dtype, causal, mode"
_MOST_BESIDE = 8
_MOST_ALIKE = 3
_CELL = (
    "metric", "implementation", "mode", "timing", "batch", "num_heads", "seqlen_q", "seqlen_k", "head_dim", "dtype",
)  # fmt: skip


def gpus(store: Store) -> pd.DataFrame:
    """Return every device with latencies or memory, the one with most numbers of the operator first."""
    return store.query(_SQL("gpus"))


def run_dates(store: Store) -> dict[str, str]:
    """Return the day on which each run was taken, as 2026-11-22; a run that does not say it is left out."""
    return dict(store.kept("SELECT run_id, strftime(created, '%Y-%m-%d') FROM runs WHERE created IS NOT NULL"))


def runs_beside(store: Store, run_id: str) -> list[str]:
    """Return the runs of this machine or of attnbench that share kinds of shapes with an import.

    Those of its GPU come first, then those of the GPU with most numbers.
    """
    found = store.rows(_SQL("runs_beside", kind_of_import=_KIND_OF_IMPORT, most_beside=_MOST_BESIDE), [run_id])
    return [name for (name,) in found]


def runs_like(store: Store, run_ids: Collection[str], rows: Sequence[Measurement] | None = None) -> list[str]:
    """Return the other runs here whose times are many times those of some runs, multiplied by one factor or not.

    `rows` are those of runs that are not stored. Whether a run is a copy is for `results.checks.stolen` to say.
    """
    cell = f"concat_ws(' ', {', '.join(_CELL)})"
    given: list[list[Any]] = [list(run_ids)]
    if rows is not None:
        timed = [m for m in rows if m.metric in ("latency_ms", "compile_ms") and m.value]
        given += map(list, zip(*map(_alike, timed), strict=True)) if timed else [[]] * 4
    theirs = _SQL("rows_stored" if rows is None else "rows_given")
    found = store.rows(_SQL("runs_like", theirs=theirs, cell=cell, most_alike=_MOST_ALIKE), given)
    return [name for (name,) in found]


def _alike(m: Measurement) -> tuple[str, float | None, int, float | None]:
    """Return the columns of `rows_stored` for a row that is not stored."""
    said = [getattr(m, name, None) or getattr(m.case, name, None) for name in _CELL]
    least = round(min(m.samples) / max(m.samples), 9) if m.samples else None
    return " ".join(str(each) for each in said if each is not None), m.value, len(m.samples), least


def gpus_with(store: Store, metrics: Sequence[str]) -> pd.DataFrame:
    """Return the devices that have a number of one of these metrics, most numbers first."""
    return store.query(_SQL("gpus_with"), [list(metrics)])


def options(
    store: Store, name: str, *, gpu: str, level: str | None = None, workload: str | None = None, mask: str | None = None
) -> pd.DataFrame:
    """Return what a filter can be set to in a scope: `choice` and `numbers`, most numbers first."""
    column = _COLUMN_OF.get(name, "choice::INTEGER" if name in _SIZES else "choice")
    scope, params = where(Filters(gpu=gpu, level=level, workload=workload, mask=mask), columns=_SCOPE)
    return store.query(
        _SQL("options", column=column, where=scope),
        ["mode" if name in _COLUMN_OF else "implementation" if name == "baseline" else name, *params],
    )


def choices(
    store: Store, *, gpu: str, level: str | None = None, workload: str | None = None, mask: str | None = None
) -> pd.DataFrame:
    """Return what every filter can be set to in a scope: `name`, `choice` as text and `numbers`."""
    scope, params = where(Filters(gpu=gpu, level=level, workload=workload, mask=mask), columns=_SCOPE)
    return store.query(_SQL("choices", where=scope), params)


def provenance(store: Store, filters: Filters) -> pd.DataFrame:
    """Return the runs that the slice is made of: source, title, when, software, and how many numbers each gives."""
    numbers = Counter(row.number.run_id for row in paired(store, filters))
    sql = "SELECT * EXCLUDE (implementations) FROM runs WHERE list_contains(?, run_id)"
    runs = store.query(sql, [[*numbers]])
    runs["numbers"] = [numbers[run_id] for run_id in runs["run_id"]]
    return runs.sort_values(["numbers", "run_id"], ascending=[False, True], ignore_index=True)


def cell(store: Store, filters: Filters, dtype: str | None, seqlen: int, row: int | None) -> pd.DataFrame:
    """Return every latency of one cell with its samples, derived FLOPs and the facts of its run.

    `seqlen` and `row` are the position of the cell on the axes of the slice's level: `row` is a head_dim, of decode a
    batch.
    """
    level = level_in(filters)
    place: dict[str, Any] = {"dtype": dtype, level.columns.column: seqlen, level.rows.column: row}
    said: dict[str, Any] = {name: (value,) for name, value in place.items() if value is not None}
    known = replace(filters, **said)
    ctes, params = cells(store, known)
    table = store.query(
        _SQL("cell", ctes=ctes, rest_of_case=_REST_OF_CASE, column=level.columns.field, row=level.rows.field),
        [*params, dtype, seqlen, row],
    )
    flops = [levels.flops(each, each["mode"]) for each in table.to_dict("records")]
    table.insert(table.columns.get_loc("batch"), "flops", pd.Series(flops, dtype=float))
    return table


def memory(store: Store, filters: Filters, metric: str) -> pd.DataFrame:
    """Return one memory metric of the slice, failures included, with its reduction against the baseline of its run."""
    rows = [row for row in same_run(store, filters, metric, without=("timing",)) if row.seqlen is not None]
    baselines = {row.case_id: row.value for row in rows if row.implementation == filters.baseline}
    rows.sort(key=lambda r: [(x is None, x) for x in (r.dtype, r.head_dim, r.shape, r.implementation, r.seqlen)])
    table = frame([row._asdict() for row in rows], _OF_MEMORY)
    against = ((baselines.get(row.case_id), row.value) for row in rows)
    reduction = [baseline / value if baseline is not None and value else None for baseline, value in against]
    return table.assign(reduction=pd.Series(reduction, dtype=float), **of_mask(filters.mask))


def peak_memory(store: Store, filters: Filters) -> dict[str, float]:
    """Return each implementation's largest peak in MiB in the slice's mode, or in any if none was taken of it."""
    of_mode = numbers(store, filters, ["peak_memory_mb"], without=("timing",))
    rows = of_mode or numbers(store, filters, ["peak_memory_mb"], without=("timing", "mode"))
    known = grouped((row for row in rows if row.value is not None), lambda row: row.implementation)
    return {name: max(row.value for row in of_it) for name, of_it in known.items()}


def memory_choices(store: Store, filters: Filters) -> pd.DataFrame:
    """Return which memory metrics and modes the slice holds, most numbers first."""
    rows = numbers(store, filters, MEMORY_METRICS, without=("timing", "mode"))
    there = {(row.metric, row.mode): 0 for row in rows} | Counter((r.metric, r.mode) for r in rows if r.status == "ok")
    order = sorted(there, key=lambda place: (-there[place], place))
    found = [{"metric": metric, "mode": mode, "numbers": there[metric, mode]} for metric, mode in order]
    return frame(found, ("metric", "mode", "numbers"))


def runs(store: Store) -> pd.DataFrame:
    """Return every run with what it holds, newest first."""
    return store.query(_SQL("runs"))


def most_of_run(store: Store, run_id: str) -> tuple[str, str | None, str | None] | None:
    """Return level, GPU and subject that most latencies of a run are of; None if it has none."""
    found = store.rows(_SQL("most_of_run"), [run_id])
    return found[0] if found else None


def outcomes(store: Store) -> pd.DataFrame:
    """Return of every run how many of its numbers are missing because nothing could run, and because it failed."""
    return store.query(_SQL("outcomes"))


def run_progress(store: Store, run_id: str) -> pd.DataFrame:
    """Count the latencies that a growing run has, by mode and timing."""
    return store.query(_SQL("run_progress"), [run_id])
