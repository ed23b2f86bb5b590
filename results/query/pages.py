"""The questions that the pages ask of the store, each answered with a small table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from results import levels
from results.metrics import MEMORY_METRICS
from results.query.pairing import frame, grouped, numbers, paired, same_run
from results.records import CASE_FIELDS
from results.slice import LEVEL, NEWEST_FIRST, Filters, level_in, of_mask
from results.slice import cells as _whole_cells
from results.store.database import Store

_COLUMN_OF = {
    "run": "run_id",
    "source": "source",
    "level": "level",
    "workload": "workload",
    "mask": "mask",
}  # filters that apply to every number
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


def gpus(store: Store) -> pd.DataFrame:
    """Return every device with latencies or memory, the one with most numbers of the operator first."""
    return store.query(
        """SELECT gpu, sum(numbers)::BIGINT AS numbers, count(DISTINCT run_id) AS runs,
                  count(DISTINCT choice) AS implementations, max(created) AS latest,
                  string_agg(DISTINCT source, ', ' ORDER BY source) AS sources, any_value(device_type) AS device_type
           FROM choices JOIN runs USING (run_id) WHERE name = 'implementation' GROUP BY gpu
           ORDER BY any_value(device_type) IS NOT DISTINCT FROM 'cpu',
                    coalesce(sum(numbers) FILTER (level = 'op'), 0) DESC, gpu"""
    )


def run_dates(store: Store) -> dict[str, str]:
    """Return the day on which each run was taken, as 2026-11-22; a run that does not say it is left out."""
    return dict(store.kept("SELECT run_id, strftime(created, '%Y-%m-%d') FROM runs WHERE created IS NOT NULL"))


def runs_beside(store: Store, run_id: str) -> list[str]:
    """Return the runs of this machine or of attnbench that share kinds of shapes with an import.

    Those of its GPU come first, then those of the GPU with most numbers.
    """
    found = store.rows(
        f"""WITH theirs AS (
                SELECT DISTINCT {_KIND_OF_IMPORT}, seqlen_q FROM measurements
                WHERE run_id = $1 AND metric = 'latency_ms'
            ),
            ours AS (
                SELECT DISTINCT run_id, {_KIND_OF_IMPORT}, seqlen_q FROM measurements WHERE metric = 'latency_ms'
            ),
            shared AS (
                SELECT ours.run_id, count(*) FILTER (ours.seqlen_q = theirs.seqlen_q) AS same, count(*) AS alike
                FROM ours JOIN theirs USING ({_KIND_OF_IMPORT}) WHERE ours.run_id <> $1 GROUP BY ours.run_id
            )
            SELECT run_id FROM shared JOIN runs USING (run_id) WHERE source IN ('local', 'shipped')
            ORDER BY gpu_name IS NOT DISTINCT FROM (SELECT gpu_name FROM runs WHERE run_id = $1) DESC,
                     sum(alike) OVER (PARTITION BY gpu_name) DESC, same DESC, alike DESC, 1
            LIMIT {_MOST_BESIDE}""",
        [run_id],
    )
    return [name for (name,) in found]


def gpus_with(store: Store, metrics: Sequence[str]) -> pd.DataFrame:
    """Return the devices that have a number of one of these metrics, most numbers first."""
    return store.query(
        """SELECT gpu, sum(numbers)::BIGINT AS numbers FROM choices
           WHERE name = 'metric' AND list_contains(?, choice) GROUP BY gpu HAVING sum(numbers) > 0
           ORDER BY numbers DESC, gpu""",
        [list(metrics)],
    )


def options(
    store: Store,
    name: str,
    *,
    gpu: str,
    level: str | None = None,
    workload: str | None = None,
    mask: str | None = None,
) -> pd.DataFrame:
    """Return what a filter can be set to in a scope: `choice` and `numbers`, most numbers first."""
    column = _COLUMN_OF.get(name, "choice::INTEGER" if name in _SIZES else "choice")
    where, params = _scope(gpu=gpu, level=level, workload=workload, mask=mask)
    return store.query(
        f"""SELECT {column} AS choice, sum(choices.numbers)::BIGINT AS numbers FROM choices JOIN runs USING (run_id)
            WHERE name = ? AND {where} GROUP BY ALL ORDER BY numbers DESC, choice""",
        ["mode" if name in _COLUMN_OF else "implementation" if name == "baseline" else name, *params],
    )


def choices(
    store: Store, *, gpu: str, level: str | None = None, workload: str | None = None, mask: str | None = None
) -> pd.DataFrame:
    """Return what every filter can be set to in a scope: `name`, `choice` as text and `numbers`."""
    where, params = _scope(gpu=gpu, level=level, workload=workload, mask=mask)
    return store.query(
        f"""WITH here AS (SELECT name, choice, numbers, run_id FROM choices WHERE {where})
            SELECT name, choice, sum(numbers)::BIGINT AS numbers FROM (
                SELECT name, choice, numbers FROM here
                UNION ALL SELECT 'run', run_id, numbers FROM here WHERE name = 'mode'
                UNION ALL SELECT 'source', source, numbers FROM here JOIN runs USING (run_id) WHERE name = 'mode')
            GROUP BY ALL ORDER BY name, numbers DESC, choice""",
        params,
    )


def provenance(store: Store, filters: Filters) -> pd.DataFrame:
    """Return the runs that the slice is made of: source, title, when, software, and how many numbers each gives."""
    numbers = Counter(row.number.run_id for row in paired(store, filters))
    runs = store.query(f"SELECT * EXCLUDE (implementations) FROM runs WHERE run_id IN ({_places(numbers)})", [*numbers])
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
    runs = {row.number.run_id for row in paired(store, known)}
    ctes, params = _whole_cells(replace(known, run=tuple(sorted(runs))))
    table = store.query(
        f"""{ctes}
        SELECT implementation, status, note, latency_ms, statistic, mean, std, p20, p80, ci_low, ci_high, n, samples,
               speedup, baseline_status, shape, mode, timing, flags, printed, origin, time,
               batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v, dtype, causal, window_size,
               level, page_size, latent_dim, {_REST_OF_CASE}, run_id, runs.* EXCLUDE (run_id, implementations)
        FROM paired JOIN runs USING (run_id)
        WHERE dtype IS NOT DISTINCT FROM ? AND {level.columns.field} IS NOT DISTINCT FROM ?
              AND {level.rows.field} IS NOT DISTINCT FROM ?
        ORDER BY shape, latency_ms NULLS LAST, implementation""",
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


def fits(store: Store, filters: Filters) -> pd.DataFrame:
    """Return how far each implementation goes: its longest seqlen, the memory of that, the first out of memory."""
    rows = numbers(store, filters, ["peak_memory_mb"], without=("timing", "mode"))
    found = []
    for name, of_it in sorted(grouped(rows, lambda row: row.implementation).items()):
        ok, oom = ([row for row in of_it if row.status == status] for status in ("ok", "oom"))
        longest = max((row.seqlen for row in ok if row.seqlen is not None), default=None)
        peak = max((row.value for row in ok if row.value is not None), default=None)
        first_oom = min((row.seqlen for row in oom if row.seqlen is not None), default=None)
        found.append({"implementation": name, "longest": longest, "peak_memory_mb": peak, "first_oom": first_oom})
    return frame(found, ("implementation", "longest", "peak_memory_mb", "first_oom"))


def memory_choices(store: Store, filters: Filters) -> pd.DataFrame:
    """Return which memory metrics and modes the slice holds, most numbers first."""
    rows = numbers(store, filters, MEMORY_METRICS, without=("timing", "mode"))
    there = {(row.metric, row.mode): 0 for row in rows} | Counter((r.metric, r.mode) for r in rows if r.status == "ok")
    order = sorted(there, key=lambda place: (-there[place], place))
    found = [{"metric": metric, "mode": mode, "numbers": there[metric, mode]} for metric, mode in order]
    return frame(found, ("metric", "mode", "numbers"))


def runs(store: Store) -> pd.DataFrame:
    """Return every run with what it holds, newest first."""
    return store.query(
        f"""SELECT runs.* EXCLUDE (implementations), coalesce(numbers, 0) AS numbers, coalesce(failures, 0) AS failures,
                  counts.implementations
           FROM runs LEFT JOIN counts USING (run_id) ORDER BY {NEWEST_FIRST}"""
    )


def most_of_run(store: Store, run_id: str) -> tuple[str, str | None, str | None] | None:
    """Return level, GPU and subject that most latencies of a run are of; None if it has none."""
    found = store.rows(
        f"""SELECT {LEVEL}, gpu_name, subject FROM results
            WHERE run_id = ? AND metric IN ('latency_ms', 'latency_extrapolated_ms') AND status = 'ok'
            GROUP BY ALL ORDER BY count(*) DESC, 1, 2, 3 LIMIT 1""",
        [run_id],
    )
    return found[0] if found else None


def outcomes(store: Store) -> pd.DataFrame:
    """Return of every run how many of its numbers are missing because nothing could run, and because it failed."""
    return store.query(
        """SELECT run_id, count(*) FILTER (WHERE status IN ('unsupported', 'skipped')) AS skipped,
                  count(*) FILTER (WHERE status NOT IN ('ok', 'unsupported', 'skipped')) AS failed
           FROM numbers JOIN slices USING (slice_id) WHERE status <> 'ok' GROUP BY run_id"""
    )


def run_progress(store: Store, run_id: str) -> pd.DataFrame:
    """Count the latencies that a growing run has, by mode and timing."""
    return store.query(
        """SELECT mode, timing, count(*) AS numbers FROM numbers JOIN slices USING (slice_id)
           WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok' GROUP BY ALL ORDER BY mode, timing""",
        [run_id],
    )


def _scope(**chosen: str | None) -> tuple[str, list[object]]:
    known = {name: value for name, value in chosen.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in known), list(known.values())


def _places(values: Collection[object]) -> str:
    return ", ".join("?" * len(values)) or "NULL"


def to_its_runs(store: Store, filters: Filters) -> Filters | None:
    """Return the slice with the runs whose latencies it shows, so that a question looks through those alone.

    None if it shows none.
    """
    runs = provenance(store, filters)["run_id"].tolist()
    return replace(filters, run=tuple(sorted(runs))) if runs else None
