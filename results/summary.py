"""The numbers that pages compare, in the shape they ask for: one row each, beside the slice it belongs to.

Made from the measurements of a run whenever the store takes it in, so that a filter or a chart reads a few narrow
columns instead of everything that is stored. `slices` names what a filter can choose, `numbers` holds the best row of
each case, implementation, mode, timing and metric of a run, `choices` counts what each filter can be set to.
"""

from __future__ import annotations

import duckdb

from results.slices import CASE_KEY, GPU, MASK, MODE, SHAPE, TIMING, WORKLOAD, Filters

MEMORY_METRICS = (
    "peak_memory_mb",
    "extra_memory_mb",
    "activation_memory_mb",
    "attention_memory_mb",
    "kv_cache_mb",
)
_METRICS = ", ".join(f"'{name}'" for name in ("latency_ms", *MEMORY_METRICS))
_NUMBER = (
    "seqlen, head_dim, dtype, implementation, status, value, std, p20, p80, n, statistic, note, time, origin, "
    "batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim_v"
)
_SLICE = "run_id, gpu, workload, mask, shape, mode, timing, metric"
# 64 bits of a digest: among a million cases the odds of two that look the same are one in ten million.
_TEXTS = ", ".join(f"coalesce({name}::VARCHAR, '')" for name in CASE_KEY.split(", "))
_CASE = f"md5_number_lower(concat_ws('|', {_TEXTS}))"

TABLES = """
CREATE TABLE slices (
    slice_id INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    gpu VARCHAR NOT NULL,
    workload VARCHAR NOT NULL,
    mask VARCHAR NOT NULL,
    shape VARCHAR NOT NULL,
    mode VARCHAR NOT NULL,
    timing VARCHAR NOT NULL,
    metric VARCHAR NOT NULL
);
CREATE TABLE numbers (
    slice_id INTEGER NOT NULL,
    case_id UBIGINT NOT NULL,
    seqlen INTEGER,
    head_dim INTEGER,
    dtype VARCHAR,
    implementation VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    value DOUBLE,
    std DOUBLE,
    p20 DOUBLE,
    p80 DOUBLE,
    n INTEGER,
    statistic VARCHAR,
    note VARCHAR,
    time TIMESTAMP,
    origin VARCHAR,
    batch INTEGER,
    num_heads INTEGER,
    num_kv_heads INTEGER,
    seqlen_q INTEGER,
    seqlen_k INTEGER,
    head_dim_v INTEGER
);
CREATE TABLE choices (
    run_id VARCHAR NOT NULL,
    gpu VARCHAR NOT NULL,
    workload VARCHAR NOT NULL,
    operator BOOLEAN NOT NULL,
    mask VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    choice VARCHAR NOT NULL,
    numbers BIGINT NOT NULL  -- with status ok
);
CREATE TABLE counts (
    run_id VARCHAR NOT NULL,
    numbers BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    implementations BIGINT NOT NULL
);
"""

_GATHER = f"""
    CREATE OR REPLACE TEMP TABLE gathered AS
    SELECT (SELECT coalesce(max(slice_id), 0) FROM slices) + dense_rank() OVER (ORDER BY {_SLICE}) AS slice_id, *
    FROM (
        SELECT run_id, {GPU} AS gpu, {WORKLOAD} AS workload, coalesce(level, 'op') = 'op' AS operator, {MASK} AS mask,
               {SHAPE} AS shape, {MODE} AS mode, {TIMING} AS timing, metric, {_CASE} AS case_id, seqlen_q AS seqlen,
               head_dim, dtype, implementation, status, value, std, p20, p80, n, statistic, note, time, origin,
               batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim_v
        FROM measurements JOIN runs USING (run_id) WHERE run_id = ANY(?) AND metric IN ({_METRICS})
    )
"""
_CHOICES = """
    INSERT INTO choices
    SELECT run_id, gpu, workload, operator, mask, name, choice, count(*) FILTER (status = 'ok')
    FROM (UNPIVOT (
        SELECT run_id, gpu, workload, operator, mask, status, mode, CASE WHEN metric = 'latency_ms' THEN timing END
               AS timing, dtype, head_dim::VARCHAR AS head_dim, seqlen::VARCHAR AS seqlen, shape, implementation, metric
        FROM gathered
    ) ON mode, timing, dtype, head_dim, seqlen, shape, implementation, metric INTO NAME name VALUE choice)
    GROUP BY ALL
"""
_STEPS = (
    f"INSERT INTO slices SELECT DISTINCT slice_id, {_SLICE} FROM gathered",
    f"""INSERT INTO numbers SELECT slice_id, case_id, {_NUMBER} FROM gathered
        QUALIFY row_number() OVER (PARTITION BY slice_id, case_id, implementation
                                   ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
        ORDER BY slice_id, case_id""",
    _CHOICES,
    "DROP TABLE gathered",
)
_COUNTS = """
    INSERT INTO counts
    SELECT run_id, count(*) FILTER (status = 'ok'), count(*) FILTER (status <> 'ok'), count(DISTINCT implementation)
    FROM measurements WHERE run_id = ANY(?) GROUP BY run_id
"""
LAYOUT = "".join((TABLES, _GATHER, *_STEPS, _COUNTS))  # another text, other rows
_AT_ONCE = 25  # runs: what is sorted at a time stays small beside the memory limit


def bring_up_to_date(cursor: duckdb.DuckDBPyConnection, run_ids: list[str]) -> None:
    """Make the rows of these runs anew from their measurements; of a run that is gone none are left."""
    cursor.execute(
        "DELETE FROM numbers WHERE slice_id IN (SELECT slice_id FROM slices WHERE run_id = ANY(?))", [run_ids]
    )
    for table in ("slices", "choices", "counts"):
        cursor.execute(f"DELETE FROM {table} WHERE run_id = ANY(?)", [run_ids])
    for start in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[start : start + _AT_ONCE]
        cursor.execute(_GATHER, [some])
        for step in _STEPS:
            cursor.execute(step)
        cursor.execute(_COUNTS, [some])


def numbers(
    filters: Filters, *, metric: str | tuple[str, ...], without: tuple[str, ...] = ()
) -> tuple[str, list[object]]:
    """The numbers of a slice as a query with its parameters: those columns, and of the run `source` and `created`."""
    metrics = [metric] if isinstance(metric, str) else [*metric]
    slices, slice_params = _where(filters, ("gpu", "workload", "mask", "mode", "timing", "shape", "run"), without)
    rows, row_params = _where(filters, ("source", "dtype", "head_dim", "seqlen"), without)
    if filters.implementation and "implementation" not in without:
        rows += " AND implementation IN ?"
        row_params.append([*filters.implementation, filters.baseline])
    return (
        f"""SELECT numbers.*, run_id, metric, mode, timing, shape, source, created, gpu_memory_mb
            FROM numbers JOIN (SELECT * FROM slices WHERE metric IN ? AND {slices}) USING (slice_id)
            JOIN (SELECT run_id, source, created, gpu_memory_mb FROM runs) USING (run_id) WHERE {rows}""",
        [metrics, *slice_params, *row_params],
    )


def _where(filters: Filters, names: tuple[str, ...], without: tuple[str, ...]) -> tuple[str, list[object]]:
    conditions, params = ["TRUE"], []
    for name in names:
        value, column = getattr(filters, name), {"run": "run_id"}.get(name, name)
        if name in without or value in (None, ()):
            continue
        conditions.append(f"{column} IN ?" if isinstance(value, tuple) else f"{column} = ?")
        params.append(list(value) if isinstance(value, tuple) else value)
    return " AND ".join(conditions), params
