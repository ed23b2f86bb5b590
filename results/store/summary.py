"""The tables that pages read, computed from the measurements of a run whenever the store ingests it.

    measurements ─ gather ─┬─> slices    what a filter can choose: GPU, workload, mask, shape, mode, timing, metric, run
                           ├─> numbers   the best row of each case and implementation in a slice
                           ├─> choices   how many numbers each choice of a filter has, by run
                           └─> counts    numbers, failures and implementations of each run

    numbers + slices + runs ─ take ─> counting    the rows of the runs that can count, ready to be read without a join

For each case one run counts (results/counting.py). A run never counts if an earlier run in that order has tried and
measured the same implementations in every mode, timing and metric. `counting` leaves out only such runs, so a view of a
million measurements reads about as many rows as it shows. If runs or sources are chosen, other runs may count, and the
query reads `numbers`.

A case changes its rows in `counting` for three reasons:

    grown      a run has new numbers: choose between the rows in `counting` and the new rows
    shrunk     a run lost numbers, or its record changed: choose among all rows of the case
    reordered  the code of two runs changed places, as when an older code is measured again: treated as shrunk
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import duckdb

from results.counting import surpasses
from results.levels import level_of, names
from results.metrics import MEMORY_METRICS
from results.slice import CASE_KEY, GPU, LEVEL, MASK, MODE, SEQLEN, SHAPE, TIMING, WORKLOAD, Filters, having

# 64 bits of a digest: among a million cases, the probability of a collision is one in ten million.
_TEXTS = ", ".join(f"coalesce({name}::VARCHAR, '')" for name in CASE_KEY.split(", "))
CASE_ID = f"md5_number_lower(concat_ws('|', {_TEXTS}))"
_SLICED = {  # column of `slices`: its expression on measurements and runs
    "run_id": "run_id",
    "gpu": GPU,
    "level": LEVEL,
    "workload": WORKLOAD,
    "mask": MASK,
    "shape": SHAPE,
    "mode": MODE,
    "timing": TIMING,
    "metric": "metric",
}
_NUMBER_TYPES = {  # column of `numbers`: its type
    "case_id": "UBIGINT NOT NULL",
    "seqlen": "INTEGER",
    "head_dim": "INTEGER",
    "dtype": "VARCHAR",
    "implementation": "VARCHAR NOT NULL",
    "status": "VARCHAR NOT NULL",
    "value": "DOUBLE",
    "std": "DOUBLE",
    "p20": "DOUBLE",
    "p80": "DOUBLE",
    "n": "INTEGER",
    "statistic": "VARCHAR",
    "note": "VARCHAR",
    "time": "TIMESTAMP",
    "origin": "VARCHAR",
    "batch": "INTEGER",
    "num_heads": "INTEGER",
    "num_kv_heads": "INTEGER",
    "seqlen_q": "INTEGER",
    "seqlen_k": "INTEGER",
    "head_dim_v": "INTEGER",
}
OF_SLICE, OF_NUMBER = tuple(_SLICED), tuple(_NUMBER_TYPES)
OF_RUN = ("source", "created", "gpu_memory_mb")
ANSWERED = ("run_id", "level", "metric", "mode", "timing", "shape", *OF_NUMBER, *OF_RUN)
_SLICE, _NUMBER = ", ".join(OF_SLICE), ", ".join(OF_NUMBER)
_COLUMNS = ", ".join((*OF_SLICE, *OF_NUMBER, *OF_RUN))
_EVERY_NUMBER = "numbers JOIN slices USING (slice_id) JOIN runs USING (run_id)"
_AT_ONCE = 25  # runs that are gathered at a time, so that the sort fits into the memory limit

TABLES = f"""
CREATE TABLE slices (slice_id INTEGER NOT NULL, {", ".join(f"{name} VARCHAR NOT NULL" for name in OF_SLICE)});
CREATE TABLE numbers (slice_id INTEGER NOT NULL, {", ".join(f"{name} {kind}" for name, kind in _NUMBER_TYPES.items())});
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
CREATE TABLE counting AS SELECT {_COLUMNS} FROM {_EVERY_NUMBER} LIMIT 0;
CREATE TABLE code_order AS SELECT run_id, code_created FROM run_ages LIMIT 0;
"""

# gather: from measurements to slices, numbers, choices and counts

_METRICS = ", ".join(f"'{name}'" for name in ("latency_ms", *MEMORY_METRICS))
_EXPRESSIONS = _SLICED | {name: name for name in OF_NUMBER} | {"case_id": CASE_ID, "seqlen": SEQLEN}
_GATHER = f"""
    CREATE OR REPLACE TEMP TABLE gathered AS
    SELECT (SELECT coalesce(max(slice_id), 0) FROM slices) + dense_rank() OVER (ORDER BY {_SLICE}) AS slice_id, *
    FROM (
        SELECT {", ".join(f"{expression} AS {name}" for name, expression in _EXPRESSIONS.items())}
        FROM measurements JOIN runs USING (run_id) WHERE run_id = ANY(?) AND metric IN ({_METRICS})
              AND (against IS NULL OR against = 'null' OR NOT contains(implementation, '@'))  -- as in the view results
    )
"""
# Levels whose map has an axis for batch or heads; on other levels both are part of the shape.
_WITH_BATCH, _WITH_HEADS = (
    ", ".join(f"'{name}'" for name in names() if level_of(name).rows.field == field) for field in ("batch", "num_heads")
)
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
    f"""INSERT INTO numbers SELECT slice_id, {_NUMBER} FROM gathered
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

# take: from numbers to counting; a case is named by _PLACE

_PLACE = "gpu, shape, case_id"
_SHRUNK = f"CREATE OR REPLACE TEMP TABLE shrunk AS SELECT DISTINCT {_PLACE} FROM counting WHERE run_id = ANY(?)"
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
_CANDIDATES = f"""
    CREATE OR REPLACE TEMP TABLE candidates AS
    WITH changed AS (
        SELECT numbers.*, slices.* EXCLUDE (slice_id) FROM numbers JOIN (FROM slices WHERE run_id = ANY($runs)) slices
        USING (slice_id)
    ), grown AS (SELECT DISTINCT {_PLACE} FROM changed EXCEPT FROM shrunk)
    SELECT {_COLUMNS} FROM changed JOIN runs USING (run_id) SEMI JOIN grown USING ({_PLACE})
    UNION ALL SELECT {_COLUMNS} FROM counting SEMI JOIN grown USING ({_PLACE}) WHERE NOT run_id = ANY($runs)
    UNION ALL SELECT {_COLUMNS} FROM {_EVERY_NUMBER} SEMI JOIN shrunk USING ({_PLACE})
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
_FINISH = (
    "DELETE FROM code_order",
    "INSERT INTO code_order SELECT run_id, code_created FROM run_ages",
    "DROP TABLE candidates",
    "DROP TABLE shrunk",
)
# A store with another layout is recreated, also if only a query here has changed.
LAYOUT = "".join((TABLES, _GATHER, *_STEPS, _COUNTS, _SHRUNK, _REORDERED, _CANDIDATES, _FORGET, _TAKE))


def bring_up_to_date(cursor: duckdb.DuckDBPyConnection, run_ids: list[str], *, shrinking: Collection[str] = ()) -> None:
    """Compute the rows of these runs again; a run that no longer exists leaves none.

    `shrinking` names the runs that may have lost numbers: removed, read again from the start, or with a new record.
    """
    cursor.execute(_SHRUNK, [list(shrinking)])  # before `counting` changes
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
    cursor.execute(_REORDERED)
    cursor.execute(_CANDIDATES, {"runs": run_ids})
    for step in (_FORGET, _TAKE, *_FINISH):
        cursor.execute(step)


def numbers(filters: Filters, metrics: Sequence[str], *, without: tuple[str, ...] = ()) -> tuple[str, list[object]]:
    """Return the query for the numbers of a slice, with its parameters.

    The query applies the filters of one value; the caller applies the filters that choose cases and implementations. It
    reads all runs if runs or sources are chosen, otherwise the runs that can count.
    """
    conditions = [f"metric IN ({', '.join('?' * len(metrics))})"]
    params: list[object] = [*metrics]
    for name in ("gpu", "level", "workload", "mask", "mode", "timing", "shape"):
        if name not in without and getattr(filters, name) is not None:
            conditions.append(f"{name} = ?")
            params.append(getattr(filters, name))
    for name in filters.features:
        conditions.append(having("workload"))
        params.append(name)
    for column, wanted in (("run_id", filters.run), ("source", filters.source)):
        conditions += [f"{column} IN ({', '.join('?' * len(wanted))})"] if wanted else []
        params += wanted
    table = _EVERY_NUMBER if filters.run or filters.source else "counting"
    return f"SELECT {', '.join(ANSWERED)} FROM {table} WHERE {' AND '.join(conditions)}", params
