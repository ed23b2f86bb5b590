"""The questions the pages ask, each answered by one SQL statement that returns a small table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd

from results.derive import FLOPS_SQL
from results.slices import AS_PUBLISHED, CASE_KEY, COLUMNS, GPU, MODE, NOT_SAID, RESULTS, SHAPE, TIMING, Filters
from results.slices import cells as _cells
from results.slices import where as _where

__all__ = ["AS_PUBLISHED", "NOT_SAID", "Filters"]

TIE = 1.02  # closer than this is no difference
TF32 = r"implementation LIKE '%\_tf32' ESCAPE '\'"  # another precision than its column's float32: no winner
MEMORY_METRICS = (
    "peak_memory_mb",
    "extra_memory_mb",
    "activation_memory_mb",
    "attention_memory_mb",
    "kv_cache_mb",
)
_METRICS = ", ".join(f"'{name}'" for name in ("latency_ms", *MEMORY_METRICS))
# Overlapping p20-p80; where only a standard deviation is known, the same interval of a normal distribution.
_TIED = f"latency_ms <= {TIE} * best_ms OR (p20 <= best_p80 AND best_p20 <= p80)"


class Store(Protocol):
    """Anything that answers SQL with a table."""

    def query(self, sql: str, params: Sequence[object] = ()) -> pd.DataFrame: ...


def gpus(store: Store) -> pd.DataFrame:
    """Every device with latencies or memory, the one with most numbers of the operator first."""
    return store.query(
        f"""SELECT {GPU} AS gpu, count(*) FILTER (status = 'ok') AS numbers, count(DISTINCT run_id) AS runs,
                   count(DISTINCT implementation) AS implementations, max(created) AS latest,
                   string_agg(DISTINCT source, ', ' ORDER BY source) AS sources,
                   any_value(device_type) AS device_type
            FROM {RESULTS} WHERE metric IN ({_METRICS})
            GROUP BY ALL
            ORDER BY any_value(device_type) IS NOT DISTINCT FROM 'cpu',
                     count(*) FILTER (status = 'ok' AND coalesce(level, 'op') = 'op') DESC, gpu"""
    )


def gpus_with(store: Store, metrics: Sequence[str]) -> pd.DataFrame:
    """The devices that have a number of one of these metrics, most numbers first."""
    return store.query(
        f"""SELECT {GPU} AS gpu, count(*) AS numbers FROM results
            WHERE list_contains(?, metric) AND status = 'ok' GROUP BY ALL ORDER BY numbers DESC, gpu""",
        [list(metrics)],
    )


def options(store: Store, name: str, *, gpu: str, workload: str | None = None, mask: str | None = None) -> pd.DataFrame:
    """What a filter can be set to within a device, workload and mask: `choice` and `numbers`, most numbers first."""
    column = COLUMNS.get(name, "implementation")
    metrics = "'latency_ms'" if name == "timing" else _METRICS
    where, params = _where(Filters(gpu=gpu, workload=workload, mask=mask))
    return store.query(
        f"""SELECT {column} AS choice, count(*) FILTER (status = 'ok') AS numbers FROM {RESULTS}
            WHERE metric IN ({metrics}) AND {column} IS NOT NULL AND {where}
            GROUP BY ALL ORDER BY numbers DESC, choice""",
        params,
    )


def grid(store: Store, filters: Filters) -> pd.DataFrame:
    """Every cell (dtype, seqlen, head_dim) and implementation: latency, speedup, status.

    A cell that holds several shapes (batch and heads) carries geometric means over them, `cases` says how many.
    """
    ctes, params = _cells(filters)
    return store.query(f"{ctes} SELECT * FROM grid ORDER BY dtype, seqlen, head_dim, implementation", params)


def winners(store: Store, filters: Filters) -> pd.DataFrame:
    """Of every cell the fastest implementation, those it ties with, and what failed; `winner` is NULL if all did.

    `status` is NULL too where no number is there and not every implementation has been tried yet.
    """
    ctes, params = _cells(filters)
    return store.query(
        f"""{ctes},
        raced AS (
            SELECT *, status = 'ok' AND measured = max(measured) OVER cell AND NOT ({TF32}) AS valid,
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
    ctes, params = _cells(filters)
    return store.query(
        f"""{ctes}
        SELECT implementation, {TF32} AS tf32,
               geomean(speedup) AS speedup, min(speedup) AS lowest, max(speedup) AS highest,
               count(speedup) AS compared, count(latency_ms) AS measured,
               (SELECT count(*) FROM (SELECT DISTINCT {CASE_KEY} FROM paired)) AS cases,
               count(*) FILTER (status NOT IN ('ok', 'skipped')) AS failures,
               count(*) FILTER (status = 'oom') AS oom,
               count(*) FILTER (status = 'out_of_resources') AS out_of_resources,
               count(*) FILTER (status = 'unsupported') AS unsupported,
               count(*) FILTER (status = 'incorrect') AS incorrect,
               count(*) FILTER (status = 'timeout') AS timeout,
               count(*) FILTER (status = 'error') AS error,
               count(*) FILTER (status = 'skipped') AS skipped,
               max(seqlen_q) FILTER (status = 'ok') AS longest,
               min(seqlen_q) FILTER (status = 'oom') AS first_oom,
               string_agg(DISTINCT statistic, ', ' ORDER BY statistic) AS statistic
        FROM paired GROUP BY ALL ORDER BY speedup DESC NULLS LAST, implementation""",
        params,
    )


def provenance(store: Store, filters: Filters) -> pd.DataFrame:
    """The runs the slice is made of: source, title, when, software, and how many numbers each gives."""
    ctes, params = _cells(filters)
    return store.query(
        f"""{ctes}, counted AS (SELECT run_id, count(*) AS numbers FROM paired GROUP BY ALL)
        SELECT runs.*, numbers FROM counted JOIN runs USING (run_id) ORDER BY numbers DESC, run_id""",
        params,
    )


def cell(store: Store, filters: Filters, dtype: str | None, seqlen: int, head_dim: int | None) -> pd.DataFrame:
    """Every latency of one cell with its samples, derived FLOPs and the facts of its run."""
    ctes, params = _cells(filters)
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
    where, params = _where(filters, without=("timing",))
    return store.query(
        f"""WITH one AS (
            SELECT *, {SHAPE} AS shape,
                   bool_or(implementation = ? AND status = 'ok') OVER (PARTITION BY run_id, {CASE_KEY}) AS has_baseline
            FROM {RESULTS} WHERE metric = ? AND {where}
            QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_KEY}, implementation
                                       ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
        ), same_run AS (
            SELECT * FROM one QUALIFY run_id = first_value(run_id) OVER (
                PARTITION BY {CASE_KEY} ORDER BY has_baseline DESC, created DESC NULLS LAST, run_id)
        )
        SELECT implementation, shape, seqlen_q AS seqlen, value, status, note, run_id, source, gpu_memory_mb, mode,
               max(value) FILTER (implementation = ?) OVER same_case / nullif(value, 0) AS reduction,
               dtype, batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v
        FROM same_run WHERE seqlen_q IS NOT NULL WINDOW same_case AS (PARTITION BY {CASE_KEY})
        ORDER BY dtype, head_dim, shape, implementation, seqlen""",
        [filters.baseline, metric, *params, filters.baseline],
    )


def fits(store: Store, filters: Filters) -> pd.DataFrame:
    """How far each implementation goes: longest seqlen with a peak memory, that memory, first seqlen out of memory."""
    where, params = _where(filters, without=("timing", "mode"))
    return store.query(
        f"""SELECT implementation, max(seqlen_q) FILTER (status = 'ok') AS longest,
                   max(value) FILTER (status = 'ok') AS peak_memory_mb,
                   min(seqlen_q) FILTER (status = 'oom') AS first_oom
            FROM {RESULTS} WHERE metric = 'peak_memory_mb' AND {where} GROUP BY ALL ORDER BY implementation""",
        params,
    )


def memory_choices(store: Store, filters: Filters) -> pd.DataFrame:
    """Which memory metrics and modes the slice holds, most numbers first."""
    where, params = _where(filters, without=("timing", "mode"))
    return store.query(
        f"""SELECT metric, {MODE} AS mode, count(*) FILTER (status = 'ok') AS numbers FROM {RESULTS}
            WHERE list_contains(?, metric) AND {where} GROUP BY ALL ORDER BY numbers DESC, metric, mode""",
        [list(MEMORY_METRICS), *params],
    )


def runs(store: Store) -> pd.DataFrame:
    """Every run with what it holds, newest first."""
    return store.query(
        """SELECT runs.*, coalesce(numbers, 0) AS numbers, coalesce(failures, 0) AS failures, implementations
           FROM runs LEFT JOIN (
               SELECT run_id, count(*) FILTER (status = 'ok') AS numbers, count(*) FILTER (status <> 'ok') AS failures,
                      count(DISTINCT implementation) AS implementations
               FROM measurements GROUP BY run_id) USING (run_id)
           ORDER BY created DESC NULLS LAST, run_id"""
    )


def run_rows(store: Store, run_id: str) -> pd.DataFrame:
    """Every measurement of one run, for download."""
    return store.query(
        "SELECT * FROM measurements WHERE run_id = ? ORDER BY seqlen_q, implementation, metric", [run_id]
    )


def run_progress(store: Store, run_id: str) -> pd.DataFrame:
    """The latencies of a run that is still growing."""
    return store.query(
        f"""SELECT dtype, mode, {TIMING} AS timing, seqlen_q AS seqlen, head_dim, implementation, status, note, value
            FROM measurements WHERE run_id = ? AND metric = 'latency_ms'
            ORDER BY seqlen, head_dim, implementation""",
        [run_id],
    )
