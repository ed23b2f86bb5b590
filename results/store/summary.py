"""The numbers that pages compare, in the shape they ask for: one row each, beside the slice it belongs to.

Made from the measurements of a run whenever the store takes it in, so that a filter or a chart reads a few narrow
columns instead of everything that is stored. `slices` names what a filter can choose, `numbers` holds the best row of
each case, implementation, mode, timing and metric of a run, and `choices` counts what each filter can be set to.

`counting` holds the numbers of the runs that can count while no run is chosen, ready to be read without a join. A
comparison takes of each case one run (results/counting.py). A run that has tried and measured nothing of a
case but what a run before it in the view `run_ages` has, never counts, whatever the baseline, the mode, the timing, the
metric and the implementations. `counting` holds the rows of all others, so that a view of a million measurements reads
about as many rows as it shows. Where runs or sources are chosen, others may count, and all numbers are looked through.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import duckdb

from results.counting import surpasses
from results.levels import level_of, names
from results.metrics import MEMORY_METRICS
from results.slice import CASE_KEY, GPU, LEVEL, MASK, MODE, SEQLEN, SHAPE, TIMING, WORKLOAD, Filters

OF_SLICE = ("gpu", "level", "workload", "mask", "shape", "mode", "timing", "metric", "run_id")
OF_NUMBER = (
    *("case_id", "seqlen", "head_dim", "dtype", "implementation", "status", "value", "std", "p20", "p80", "n"),
    *("statistic", "note", "time", "origin", "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k"),
    "head_dim_v",
)
OF_RUN = ("source", "created", "gpu_memory_mb")
_COLUMNS = ", ".join((*OF_SLICE, *OF_NUMBER, *OF_RUN))
_PLACE = "gpu, shape, case_id"

TABLE = f"""
CREATE TABLE counting AS
SELECT {_COLUMNS} FROM numbers JOIN slices USING (slice_id) JOIN runs USING (run_id) LIMIT 0;
CREATE TABLE code_order AS SELECT run_id, code_created FROM run_ages LIMIT 0;
"""
_SHRUNK = f"CREATE OR REPLACE TEMP TABLE shrunk AS SELECT DISTINCT {_PLACE} FROM counting WHERE run_id = ANY(?)"
_WHOLE = "numbers JOIN slices USING (slice_id) JOIN runs USING (run_id)"
# Cases of runs whose code has changed places with another, as when an older code is measured again.
_REORDERED = f"""
    INSERT INTO shrunk WITH moved AS (
        SELECT run_id, coalesce(code_order.code_created, '-infinity') AS was,
               coalesce(run_ages.code_created, '-infinity') AS now
        FROM code_order JOIN run_ages USING (run_id)
    ), reordered AS (
        SELECT DISTINCT one.run_id FROM moved one JOIN moved other ON (one.was <= other.was) <> (one.now <= other.now)
    )
    SELECT DISTINCT {_PLACE} FROM numbers JOIN slices USING (slice_id) SEMI JOIN reordered USING (run_id)
    EXCEPT FROM shrunk
"""
# A case that lost nothing is decided between the rows that counted before and the new ones.
_GATHER_COUNTING = f"""
    CREATE OR REPLACE TEMP TABLE candidates AS
    WITH changed AS (
        SELECT numbers.*, slices.* EXCLUDE (slice_id) FROM numbers JOIN (FROM slices WHERE run_id = ANY($runs)) slices
        USING (slice_id)
    ), grown AS (SELECT DISTINCT {_PLACE} FROM changed EXCEPT FROM shrunk)
    SELECT {_COLUMNS} FROM changed JOIN runs USING (run_id) SEMI JOIN grown USING ({_PLACE})
    UNION ALL SELECT {_COLUMNS} FROM counting SEMI JOIN grown USING ({_PLACE}) WHERE NOT run_id = ANY($runs)
    UNION ALL SELECT {_COLUMNS} FROM {_WHOLE} SEMI JOIN shrunk USING ({_PLACE})
"""
_FORGET = f"""
    DELETE FROM counting WHERE ({_PLACE}) IN
    (SELECT ({_PLACE}) FROM candidates UNION ALL SELECT ({_PLACE}) FROM shrunk)
"""
_NAME = "mode, timing, metric, implementation"
_TAKE = f"""
    INSERT INTO counting
    WITH said AS (
        SELECT {_PLACE}, run_id, code_age, age,
               list(hash({_NAME})) || coalesce(list(hash({_NAME}, status)) FILTER (status = 'ok'), []) AS said
        FROM candidates JOIN run_ages USING (run_id) GROUP BY ALL
    ), surpassed AS (
        SELECT DISTINCT {_PLACE}, run.run_id FROM said run JOIN said other USING ({_PLACE})
        WHERE {surpasses("other", "run")} AND list_has_all(other.said, run.said)
    )
    SELECT {_COLUMNS} FROM candidates JOIN run_ages USING (run_id) ANTI JOIN surpassed USING ({_PLACE}, run_id)
    ORDER BY gpu, workload, mask, mode, timing, metric, case_id, age, implementation
"""
_KEEP_ORDER = "INSERT INTO code_order SELECT run_id, code_created FROM run_ages"
COUNTING_LAYOUT = "".join((TABLE, _SHRUNK, _REORDERED, _GATHER_COUNTING, _FORGET, _TAKE))


def before(cursor: duckdb.DuckDBPyConnection, shrinking: list[str]) -> None:
    """Remember where these runs count, which may have less to say from now on."""
    cursor.execute(_SHRUNK, [shrinking])


def after(cursor: duckdb.DuckDBPyConnection, run_ids: list[str]) -> None:
    """Choose anew wherever these runs, whose numbers have changed, might count, and where the others counted."""
    cursor.execute(_REORDERED)
    cursor.execute(_GATHER_COUNTING, {"runs": run_ids})
    cursor.execute(_FORGET)
    cursor.execute(_TAKE)
    cursor.execute("DELETE FROM code_order")
    cursor.execute(_KEEP_ORDER)
    cursor.execute("DROP TABLE candidates")
    cursor.execute("DROP TABLE shrunk")


_METRICS = ", ".join(f"'{name}'" for name in ("latency_ms", *MEMORY_METRICS))
_NUMBER = (
    "seqlen, head_dim, dtype, implementation, status, value, std, p20, p80, n, statistic, note, time, origin, "
    "batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim_v"
)
_SLICE = "run_id, gpu, level, workload, mask, shape, mode, timing, metric"
# 64 bits of a digest: among a million cases the odds of two that look the same are one in ten million.
_TEXTS = ", ".join(f"coalesce({name}::VARCHAR, '')" for name in CASE_KEY.split(", "))
CASE_ID = f"md5_number_lower(concat_ws('|', {_TEXTS}))"

TABLES = (
    """
CREATE TABLE slices (
    slice_id INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    gpu VARCHAR NOT NULL,
    level VARCHAR NOT NULL,
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
    level VARCHAR NOT NULL,
    workload VARCHAR NOT NULL,
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
    + TABLE
)

# Levels whose map has a batch or heads on an axis; of the others they are part of the shape.
_WITH_BATCH, _WITH_HEADS = (
    ", ".join(f"'{name}'" for name in names() if level_of(name).rows.field == field) for field in ("batch", "num_heads")
)
_GATHER = f"""
    CREATE OR REPLACE TEMP TABLE gathered AS
    SELECT (SELECT coalesce(max(slice_id), 0) FROM slices) + dense_rank() OVER (ORDER BY {_SLICE}) AS slice_id, *
    FROM (
        SELECT run_id, {GPU} AS gpu, {LEVEL} AS level, {WORKLOAD} AS workload, {MASK} AS mask,
               {SHAPE} AS shape, {MODE} AS mode, {TIMING} AS timing, metric, {CASE_ID} AS case_id, {SEQLEN} AS seqlen,
               head_dim, dtype, implementation, status, value, std, p20, p80, n, statistic, note, time, origin,
               batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim_v
        FROM measurements JOIN runs USING (run_id) WHERE run_id = ANY(?) AND metric IN ({_METRICS})
              AND (against IS NULL OR against = 'null' OR NOT contains(implementation, '@'))  -- as in the view results
    )
"""
_CHOICES = f"""
    INSERT INTO choices
    SELECT run_id, gpu, level, workload, mask, name, choice, count(*) FILTER (status = 'ok')
    FROM (UNPIVOT (
        SELECT run_id, gpu, level, workload, mask, status, mode,
               CASE WHEN metric = 'latency_ms' THEN timing END AS timing, dtype, head_dim::VARCHAR AS head_dim,
               CASE WHEN level IN ({_WITH_BATCH}) THEN batch::VARCHAR END AS batch,
               CASE WHEN level IN ({_WITH_HEADS}) THEN num_heads::VARCHAR END AS num_heads, seqlen::VARCHAR AS seqlen,
               shape, implementation, metric
        FROM gathered
    ) ON mode, timing, dtype, head_dim, batch, num_heads, seqlen, shape, implementation, metric
      INTO NAME name VALUE choice)
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
LAYOUT = "".join((TABLES, _GATHER, *_STEPS, _COUNTS, COUNTING_LAYOUT))  # another text, other rows
ANSWERED = ("run_id", "level", "metric", "mode", "timing", "shape", *OF_NUMBER, *OF_RUN)
_AT_ONCE = 25  # runs: what is sorted at a time stays small beside the memory limit


def bring_up_to_date(cursor: duckdb.DuckDBPyConnection, run_ids: list[str], *, shrinking: Collection[str] = ()) -> None:
    """Make the rows of these runs anew from their measurements; of a run that is gone none are left.

    `shrinking` are those that may have lost something: gone, read again from the start, or with another record.
    """
    before(cursor, list(shrinking))
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
    after(cursor, run_ids)


def numbers(filters: Filters, metrics: Sequence[str], *, without: tuple[str, ...] = ()) -> tuple[str, list[object]]:
    """Return the query for the numbers of a slice, with its parameters; of all runs where some are chosen.

    Only the filters of one value are applied: those that choose cases and implementations are left to the caller.
    """
    conditions, params = [f"metric IN ({', '.join('?' * len(metrics))})"], [*metrics]
    for name in ("gpu", "level", "workload", "mask", "mode", "timing", "shape"):
        if name not in without and getattr(filters, name) is not None:
            conditions.append(f"{name} = ?")
            params.append(getattr(filters, name))
    table = "counting"
    if filters.run or filters.source:
        table = "numbers JOIN slices USING (slice_id) JOIN runs USING (run_id)"
        for column, wanted in (("run_id", filters.run), ("source", filters.source)):
            conditions += [f"{column} IN ({', '.join('?' * len(wanted))})"] if wanted else []
            params += wanted
    return f"SELECT {', '.join(ANSWERED)} FROM {table} WHERE {' AND '.join(conditions)}", params
