"""The questions the pages ask, each answered by one SQL statement that returns a small table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import pandas as pd

from results.derive import FLOPS_SQL
from results.precision import OTHER_SQL
from results.slices import AS_PUBLISHED, NOT_SAID, Filters
from results.slices import cells as _whole_cells
from results.summary import MEMORY_METRICS, numbers

__all__ = ["AS_PUBLISHED", "MEMORY_METRICS", "NOT_SAID", "Filters"]

TIE = 1.02  # closer than this is no difference
# Overlapping p20-p80; where only a standard deviation is known, the same interval of a normal distribution.
_TIED = f"latency_ms <= {TIE} * best_ms OR (p20 <= best_p80 AND best_p20 <= p80)"
_COLUMN_OF = {"run": "run_id", "source": "source", "workload": "workload", "mask": "mask"}  # those of every number
_SIZES = ("seqlen", "head_dim")
# Of several modes or timings one number; within each the summary holds the best already.
_BEST = """QUALIFY row_number() OVER (PARTITION BY run_id, case_id, implementation
                                      ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1"""


class Store(Protocol):
    """Anything that answers SQL with a table."""

    def query(self, sql: str, params: Sequence[object] = ()) -> pd.DataFrame: ...


def gpus(store: Store) -> pd.DataFrame:
    """Every device with latencies or memory, the one with most numbers of the operator first."""
    return store.query(
        """SELECT gpu, sum(numbers)::BIGINT AS numbers, count(DISTINCT run_id) AS runs,
                  count(DISTINCT choice) AS implementations, max(created) AS latest,
                  string_agg(DISTINCT source, ', ' ORDER BY source) AS sources, any_value(device_type) AS device_type
           FROM choices JOIN runs USING (run_id) WHERE name = 'implementation' GROUP BY gpu
           ORDER BY any_value(device_type) IS NOT DISTINCT FROM 'cpu',
                    coalesce(sum(numbers) FILTER (operator), 0) DESC, gpu"""
    )


def gpus_with(store: Store, metrics: Sequence[str]) -> pd.DataFrame:
    """The devices that have a number of one of these metrics, most numbers first."""
    return store.query(
        """SELECT gpu, sum(numbers)::BIGINT AS numbers FROM choices
           WHERE name = 'metric' AND list_contains(?, choice) GROUP BY gpu HAVING sum(numbers) > 0
           ORDER BY numbers DESC, gpu""",
        [list(metrics)],
    )


def options(store: Store, name: str, *, gpu: str, workload: str | None = None, mask: str | None = None) -> pd.DataFrame:
    """What a filter can be set to within a device, workload and mask: `choice` and `numbers`, most numbers first."""
    column = _COLUMN_OF.get(name, "choice::INTEGER" if name in _SIZES else "choice")
    where, params = _scope(gpu, workload, mask)
    return store.query(
        f"""SELECT {column} AS choice, sum(choices.numbers)::BIGINT AS numbers FROM choices JOIN runs USING (run_id)
            WHERE name = ? AND {where} GROUP BY ALL ORDER BY numbers DESC, choice""",
        ["mode" if name in _COLUMN_OF else "implementation" if name == "baseline" else name, *params],
    )


def choices(store: Store, *, gpu: str, workload: str | None = None, mask: str | None = None) -> pd.DataFrame:
    """The same of every filter at once: `name`, `choice` as text and `numbers`."""
    where, params = _scope(gpu, workload, mask)
    return store.query(
        f"""WITH here AS (SELECT name, choice, numbers, run_id FROM choices WHERE {where})
            SELECT name, choice, sum(numbers)::BIGINT AS numbers FROM (
                SELECT name, choice, numbers FROM here
                UNION ALL SELECT 'run', run_id, numbers FROM here WHERE name = 'mode'
                UNION ALL SELECT 'source', source, numbers FROM here JOIN runs USING (run_id) WHERE name = 'mode')
            GROUP BY ALL ORDER BY name, numbers DESC, choice""",
        params,
    )


def grid(store: Store, filters: Filters) -> pd.DataFrame:
    """Every cell (dtype, seqlen, head_dim) and implementation: latency, speedup, status.

    A cell that holds several shapes (batch and heads) carries geometric means over them, `cases` says how many.
    """
    ctes, params = _grid(filters)
    return store.query(f"{ctes} SELECT * FROM grid ORDER BY dtype, seqlen, head_dim, implementation", params)


def winners(store: Store, filters: Filters) -> pd.DataFrame:
    """Of every cell the fastest implementation, those it ties with, and what failed; `winner` is NULL if all did.

    `status` is NULL too where no number is there and not every implementation has been tried yet.
    """
    ctes, params = _grid(filters)
    return store.query(
        f"""{ctes},
        raced AS (
            SELECT *, status = 'ok' AND measured = max(measured) OVER cell AND NOT {OTHER_SQL} AS valid,
                   count(*) OVER cell AS tried
            FROM grid WINDOW cell AS (PARTITION BY dtype, seqlen, head_dim)
        ),
        marked AS (
            SELECT *, max(tried) OVER (PARTITION BY dtype) AS planned,
                   min(latency_ms) FILTER (valid) OVER cell AS best_ms,
                   arg_min(p20, latency_ms) FILTER (valid) OVER cell AS best_p20,
                   arg_min(p80, latency_ms) FILTER (valid) OVER cell AS best_p80
            FROM raced WINDOW cell AS (PARTITION BY dtype, seqlen, head_dim)
        )
        SELECT dtype, seqlen, head_dim,
               arg_min(implementation, latency_ms) FILTER (valid) AS winner,
               min(latency_ms) FILTER (valid) AS latency_ms,
               arg_min(speedup, latency_ms) FILTER (valid) AS speedup,
               list(implementation ORDER BY latency_ms) FILTER (valid AND ({_TIED})) AS tied,
               list(implementation || ' ' || status ORDER BY implementation) FILTER (status <> 'ok') AS failed,
               CASE WHEN count(*) FILTER (valid) > 0 OR any_value(tried) = any_value(planned)
                    THEN mode(status) FILTER (status <> 'ok') END AS status,
               count(*) FILTER (valid) AS contenders, max(cases) AS cases
        FROM marked GROUP BY dtype, seqlen, head_dim ORDER BY dtype, seqlen, head_dim""",
        params,
    )


def ranking(store: Store, filters: Filters) -> pd.DataFrame:
    """Every implementation over the slice: geometric-mean speedup, coverage, failures, how far it goes."""
    ctes, params = _paired(filters)
    return store.query(
        f"""{ctes}
        SELECT implementation, {OTHER_SQL} AS other_precision,
               geomean(speedup) AS speedup, min(speedup) AS lowest, max(speedup) AS highest,
               count(speedup) AS compared, count(latency_ms) AS measured,
               (SELECT count(DISTINCT case_id) FROM paired) AS cases,
               count(*) FILTER (status NOT IN ('ok', 'skipped')) AS failures,
               count(*) FILTER (status = 'oom') AS oom,
               count(*) FILTER (status = 'out_of_resources') AS out_of_resources,
               count(*) FILTER (status = 'unsupported') AS unsupported,
               count(*) FILTER (status = 'incorrect') AS incorrect,
               count(*) FILTER (status = 'timeout') AS timeout,
               count(*) FILTER (status = 'error') AS error,
               count(*) FILTER (status = 'skipped') AS skipped,
               max(seqlen) FILTER (status = 'ok') AS longest,
               min(seqlen) FILTER (status = 'oom') AS first_oom,
               string_agg(DISTINCT statistic, ', ' ORDER BY statistic) AS statistic
        FROM paired GROUP BY ALL ORDER BY speedup DESC NULLS LAST, implementation""",
        params,
    )


def provenance(store: Store, filters: Filters) -> pd.DataFrame:
    """The runs the slice is made of: source, title, when, software, and how many numbers each gives."""
    ctes, params = _paired(filters)
    return store.query(
        f"""{ctes}, counted AS (SELECT run_id, count(*) AS numbers FROM paired GROUP BY ALL)
        SELECT runs.*, numbers FROM counted JOIN runs USING (run_id) ORDER BY numbers DESC, run_id""",
        params,
    )


def cell(store: Store, filters: Filters, dtype: str | None, seqlen: int, head_dim: int | None) -> pd.DataFrame:
    """Every latency of one cell with its samples, derived FLOPs and the facts of its run."""
    place = {"dtype": dtype, "seqlen": seqlen, "head_dim": head_dim}
    known = replace(filters, **{name: (value,) for name, value in place.items() if value is not None})
    narrow, narrow_params = _paired(known)
    ctes, params = _whole_cells(replace(known, run=_runs_of(store, narrow, narrow_params)))
    return store.query(
        f"""{ctes}
        SELECT implementation, status, note, latency_ms, statistic, mean, std, p20, p80, ci_low, ci_high, n, samples,
               speedup, baseline_status, shape, mode, timing, flags, printed, origin, time, {FLOPS_SQL} AS flops,
               batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v, dtype, causal, window_size,
               run_id, runs.* EXCLUDE (run_id)
        FROM paired JOIN runs USING (run_id)
        WHERE dtype IS NOT DISTINCT FROM ? AND seqlen_q IS NOT DISTINCT FROM ? AND head_dim IS NOT DISTINCT FROM ?
        ORDER BY shape, latency_ms NULLS LAST, implementation""",
        [*params, dtype, seqlen, head_dim],
    )


def memory(store: Store, filters: Filters, metric: str) -> pd.DataFrame:
    """One memory metric of the slice with its reduction against the baseline in the same run, failures included."""
    ctes, params = _same_run(filters, metric, without=("timing",))
    return store.query(
        f"""{ctes}
        SELECT implementation, shape, seqlen, value, status, note, run_id, source, gpu_memory_mb, mode,
               max(value) FILTER (implementation = ?) OVER same_case / nullif(value, 0) AS reduction,
               dtype, batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v
        FROM same_run WHERE seqlen IS NOT NULL WINDOW same_case AS (PARTITION BY case_id)
        ORDER BY dtype, head_dim, shape, implementation, seqlen""",
        [*params, filters.baseline],
    )


def fits(store: Store, filters: Filters) -> pd.DataFrame:
    """How far each implementation goes: longest seqlen with a peak memory, that memory, first seqlen out of memory."""
    rows, params = numbers(filters, metric="peak_memory_mb", without=("timing", "mode"))
    return store.query(
        f"""SELECT implementation, max(seqlen) FILTER (status = 'ok') AS longest,
                   max(value) FILTER (status = 'ok') AS peak_memory_mb,
                   min(seqlen) FILTER (status = 'oom') AS first_oom
            FROM ({rows}) GROUP BY ALL ORDER BY implementation""",
        params,
    )


def memory_choices(store: Store, filters: Filters) -> pd.DataFrame:
    """Which memory metrics and modes the slice holds, most numbers first."""
    rows, params = numbers(filters, metric=MEMORY_METRICS, without=("timing", "mode"))
    return store.query(
        f"""SELECT metric, mode, count(*) FILTER (status = 'ok') AS numbers FROM ({rows})
            GROUP BY ALL ORDER BY numbers DESC, metric, mode""",
        params,
    )


def runs(store: Store) -> pd.DataFrame:
    """Every run with what it holds, newest first."""
    return store.query(
        """SELECT runs.*, coalesce(numbers, 0) AS numbers, coalesce(failures, 0) AS failures, implementations
           FROM runs LEFT JOIN counts USING (run_id) ORDER BY created DESC NULLS LAST, run_id"""
    )


def run_progress(store: Store, run_id: str) -> pd.DataFrame:
    """How many latencies a growing run has, by mode and timing."""
    return store.query(
        """SELECT mode, timing, count(*) AS numbers FROM numbers JOIN slices USING (slice_id)
           WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok' GROUP BY ALL ORDER BY mode, timing""",
        [run_id],
    )


def _same_run(filters: Filters, metric: str, *, without: tuple[str, ...] = ()) -> tuple[str, list[object]]:
    """The common table `same_run`: of each case every implementation's row, all of the latest run with the baseline."""
    rows, params = numbers(filters, metric=metric, without=without)
    several = any(name in without or getattr(filters, name) is None for name in ("mode", "timing"))
    ctes = f"""WITH one AS (
        SELECT * FROM ({rows}) {_BEST if several else ""}
    ), of_run AS (
        SELECT case_id, run_id, any_value(created) AS created,
               bool_or(implementation = ? AND status = 'ok') AS has_baseline
        FROM one GROUP BY case_id, run_id
    ), latest AS (
        SELECT case_id, run_id FROM of_run
        QUALIFY row_number() OVER (PARTITION BY case_id ORDER BY has_baseline DESC, created DESC NULLS LAST, run_id) = 1
    ), same_run AS (SELECT one.* FROM one JOIN latest USING (case_id, run_id))"""
    return ctes, [*params, filters.baseline]


def _paired(filters: Filters) -> tuple[str, list[object]]:
    """The common table `paired`: a row a case and implementation, with its speedup and how the baseline ended."""
    ctes, params = _same_run(filters, "latency_ms")
    paired = """, paired AS (
        SELECT * RENAME (value AS latency_ms), max(value) FILTER (implementation = ?) OVER same_case / value AS speedup,
               max(status) FILTER (implementation = ?) OVER same_case AS baseline_status
        FROM same_run WINDOW same_case AS (PARTITION BY case_id)
    )"""
    return ctes + paired, [*params, filters.baseline, filters.baseline]


def _grid(filters: Filters) -> tuple[str, list[object]]:
    """The common tables `paired` and `grid`, a row a cell and implementation."""
    ctes, params = _paired(filters)
    grid = """, grid AS (
        SELECT dtype, seqlen, head_dim, implementation, count(*) AS cases, count(latency_ms) AS measured,
               count(speedup) AS compared, CASE WHEN count(latency_ms) > 0 THEN 'ok' ELSE mode(status) END AS status,
               any_value(note) FILTER (status <> 'ok') AS note, max(baseline_status) AS baseline_status,
               geomean(latency_ms) AS latency_ms, geomean(speedup) AS speedup,
               geomean(coalesce(p20, CASE WHEN latency_ms > 0.8416 * std THEN latency_ms - 0.8416 * std END)) AS p20,
               geomean(coalesce(p80, latency_ms + 0.8416 * std)) AS p80,
               min(n) AS n, any_value(statistic) AS statistic,
               string_agg(DISTINCT source, ', ' ORDER BY source) AS source,
               string_agg(DISTINCT run_id, ', ' ORDER BY run_id) AS run_id
        FROM paired GROUP BY ALL
    )"""
    return ctes + grid, params


def _scope(gpu: str, workload: str | None, mask: str | None) -> tuple[str, list[object]]:
    known = {"gpu": gpu} | {k: v for k, v in {"workload": workload, "mask": mask}.items() if v is not None}
    return " AND ".join(f"{name} = ?" for name in known), list(known.values())


def _runs_of(store: Store, paired: str, params: Sequence[object]) -> tuple[str, ...]:
    return tuple(store.query(f"{paired} SELECT DISTINCT run_id FROM paired ORDER BY run_id", params)["run_id"])
