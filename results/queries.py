"""The questions the pages ask, each answered by one SQL statement that returns a small table.

Everything about speed compares within one run: of each case the latest run that holds the baseline is taken, and all
implementations of that case come from it. Text columns made here (`workload`, `mask`, `shape`) name what a slice keeps
apart; where the source did not say, they say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from results.derive import FLOPS_SQL

NOT_SAID = "not said"
AS_PUBLISHED = "as published"  # the timing of rows whose source did not say how time was taken
TIE = 1.02  # closer than this is no difference
MEMORY_METRICS = (
    "peak_memory_mb",
    "extra_memory_mb",
    "activation_memory_mb",
    "attention_memory_mb",
    "kv_cache_mb",
)
RESULTS = "(SELECT results.*, runs.sweep FROM results JOIN runs USING (run_id))"
_METRICS = ", ".join(f"'{name}'" for name in ("latency_ms", *MEMORY_METRICS))

WORKLOAD = (
    f"CASE WHEN coalesce(level, 'op') = 'op' THEN coalesce(subject, '{NOT_SAID}') "
    f"ELSE level || ' ' || coalesce(subject, '{NOT_SAID}') END"
)
MASK = (
    f"CASE WHEN causal IS NULL THEN '{NOT_SAID}' WHEN causal THEN 'causal' ELSE 'full' END "
    "|| CASE WHEN window_size > 0 THEN ' window ' || window_size ELSE '' END"
)
# A sweep that derives batch and heads from a budget is one shape: its rule.
SHAPE = (
    "CASE WHEN sweep ->> 'tokens' IS NOT NULL AND sweep ->> 'hidden' IS NOT NULL "
    "THEN (sweep ->> 'tokens') || ' tokens, hidden ' || (sweep ->> 'hidden') "
    "ELSE 'B' || coalesce(batch::VARCHAR, '?') || ' H' || coalesce(num_heads::VARCHAR, '?') "
    "|| CASE WHEN num_kv_heads <> num_heads THEN ' KV' || num_kv_heads ELSE '' END END"
)
TIMING = f"coalesce(timing, '{AS_PUBLISHED}')"
MODE = f"coalesce(mode, '{NOT_SAID}')"
GPU = f"coalesce(gpu_name, '{NOT_SAID}')"
CASE_KEY = (
    "level, subject, batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v, dtype, causal, "
    "window_size, page_size, latent_dim"
)


class Store(Protocol):
    """Anything that answers SQL with a table."""

    def query(self, sql: str, params: Sequence[object] = ()) -> pd.DataFrame: ...


@dataclass(frozen=True)
class Filters:
    """The slice of the results a page shows. An empty tuple means all; None means nothing was chosen yet."""

    gpu: str | None = None
    workload: str | None = None
    mask: str | None = None
    mode: str | None = None
    timing: str | None = None
    baseline: str | None = None
    implementation: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    head_dim: tuple[int, ...] = ()
    seqlen: tuple[int, ...] = ()
    shape: str | None = None  # None: all shapes
    source: tuple[str, ...] = ()
    run: tuple[str, ...] = ()


_COLUMNS = {
    "gpu": GPU,
    "workload": WORKLOAD,
    "mask": MASK,
    "mode": MODE,
    "timing": TIMING,
    "dtype": "dtype",
    "head_dim": "head_dim",
    "seqlen": "seqlen_q",
    "shape": SHAPE,
    "source": "source",
    "run": "run_id",
}


def _where(filters: Filters, *, without: tuple[str, ...] = ()) -> tuple[str, list[object]]:
    """The filters as a condition and its parameters; implementations always keep the baseline."""
    conditions, params = ["TRUE"], []
    for name, column in _COLUMNS.items():
        value = getattr(filters, name)
        if name in without or value in (None, ()):
            continue
        conditions.append(f"({column}) IN ?" if isinstance(value, tuple) else f"({column}) = ?")
        params.append(list(value) if isinstance(value, tuple) else value)
    if filters.implementation and "implementation" not in without:
        conditions.append("implementation IN ?")
        params.append([*filters.implementation, filters.baseline])
    return " AND ".join(conditions), params


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
    column = _COLUMNS.get(name, "implementation")
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
    """Of every cell the fastest implementation, those it ties with, and what failed; `winner` is NULL if all did."""
    ctes, params = _cells(filters)
    return store.query(
        f"""{ctes},
        raced AS (
            SELECT *, status = 'ok' AND measured = max(measured) OVER cell AS valid FROM grid
            WINDOW cell AS (PARTITION BY dtype, seqlen, head_dim)
        ),
        marked AS (
            SELECT *, min(latency_ms) FILTER (valid) OVER cell AS best_ms,
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
               mode(status) FILTER (status <> 'ok') AS status,
               count(*) FILTER (valid) AS contenders, max(cases) AS cases
        FROM marked GROUP BY ALL ORDER BY dtype, seqlen, head_dim""",
        params,
    )


def ranking(store: Store, filters: Filters) -> pd.DataFrame:
    """Every implementation over the slice: geometric-mean speedup, coverage, failures, how far it goes."""
    ctes, params = _cells(filters)
    return store.query(
        f"""{ctes}
        SELECT implementation, geomean(speedup) AS speedup, min(speedup) AS lowest, max(speedup) AS highest,
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


# Overlapping p20-p80; where only a standard deviation is known, the same interval of a normal distribution.
_TIED = f"latency_ms <= {TIE} * best_ms OR (p20 <= best_p80 AND best_p20 <= p80)"


def _cells(filters: Filters) -> tuple[str, list[object]]:
    """The common tables `paired` (a row a case and implementation, all of one run) and `grid` (a row a cell)."""
    where, params = _where(filters)
    ctes = f"""WITH one AS (
        SELECT *, value AS latency_ms, {SHAPE} AS shape,
               bool_or(implementation = ? AND status = 'ok') OVER (PARTITION BY run_id, {CASE_KEY}) AS has_baseline
        FROM {RESULTS} WHERE metric = 'latency_ms' AND {where}
        QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_KEY}, implementation
                                   ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
    ), same_run AS (
        SELECT * FROM one QUALIFY run_id = first_value(run_id) OVER (
            PARTITION BY {CASE_KEY} ORDER BY has_baseline DESC, created DESC NULLS LAST, run_id)
    ), paired AS (
        SELECT *, max(latency_ms) FILTER (implementation = ?) OVER same_case / latency_ms AS speedup,
               max(status) FILTER (implementation = ?) OVER same_case AS baseline_status
        FROM same_run WINDOW same_case AS (PARTITION BY {CASE_KEY})
    ), grid AS (
        SELECT dtype, seqlen_q AS seqlen, head_dim, implementation, count(*) AS cases, count(latency_ms) AS measured,
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
    return ctes, [filters.baseline, *params, filters.baseline, filters.baseline]
