"""Of each case the runs that a comparison over all runs takes, their numbers ready to be read without a join.

A comparison takes of each case the newest run that holds the baseline, or the newest if none does. Whatever the
baseline, and whichever mode, timing, metric and implementations are chosen, that run is the newest that has a number of
some implementation, or the newest that has tried it. `newest` holds the rows of those runs and of no other, so that a
view of a million measurements reads about as many rows as it shows. Where runs or sources are chosen, an older run may
count, and all numbers are looked through.
"""

from __future__ import annotations

import duckdb

OF_SLICE = ("gpu", "workload", "mask", "shape", "mode", "timing", "metric", "run_id")
OF_NUMBER = (
    *("case_id", "seqlen", "head_dim", "dtype", "implementation", "status", "value", "std", "p20", "p80", "n"),
    *("statistic", "note", "time", "origin", "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k"),
    "head_dim_v",
)
OF_RUN = ("source", "created", "gpu_memory_mb")
_COLUMNS = ", ".join((*OF_SLICE, *OF_NUMBER, *OF_RUN))
_CASE = "gpu, shape, case_id"

TABLE = f"""
CREATE TABLE newest AS
SELECT {_COLUMNS} FROM numbers JOIN slices USING (slice_id) JOIN runs USING (run_id) LIMIT 0
"""
_SHRUNK = f"CREATE OR REPLACE TEMP TABLE shrunk AS SELECT DISTINCT {_CASE} FROM newest WHERE run_id = ANY(?)"
_WHOLE = "numbers JOIN slices USING (slice_id) JOIN runs USING (run_id)"
# A case that lost nothing is decided between the rows that counted before and the new ones.
_GATHER = f"""
    CREATE OR REPLACE TEMP TABLE candidates AS
    WITH changed AS (
        SELECT numbers.*, slices.* EXCLUDE (slice_id) FROM numbers JOIN (FROM slices WHERE run_id = ANY($runs)) slices
        USING (slice_id)
    ), grown AS (SELECT DISTINCT {_CASE} FROM changed EXCEPT FROM shrunk)
    SELECT {_COLUMNS} FROM changed JOIN runs USING (run_id) SEMI JOIN grown USING ({_CASE})
    UNION ALL SELECT {_COLUMNS} FROM newest SEMI JOIN grown USING ({_CASE}) WHERE NOT run_id = ANY($runs)
    UNION ALL SELECT {_COLUMNS} FROM {_WHOLE} SEMI JOIN shrunk USING ({_CASE})
"""
_FORGET = f"""
    DELETE FROM newest WHERE ({_CASE}) IN (SELECT ({_CASE}) FROM candidates UNION ALL SELECT ({_CASE}) FROM shrunk)
"""
_TAKE = f"""
    INSERT INTO newest
    WITH aged AS (
        SELECT run_id, row_number() OVER (ORDER BY created DESC NULLS LAST, run_id)::INTEGER AS age FROM runs
    ), here AS (FROM candidates JOIN aged USING (run_id)), ages AS (
        SELECT {_CASE}, [min(age), min(age) FILTER (status = 'ok')] AS ages
        FROM here GROUP BY {_CASE}, mode, timing, metric, implementation
    ), kept AS (SELECT DISTINCT {_CASE}, unnest(ages) AS age FROM ages)
    SELECT {_COLUMNS} FROM here SEMI JOIN kept USING ({_CASE}, age)
    ORDER BY gpu, workload, mask, mode, timing, metric, case_id, age, implementation
"""
LAYOUT = "".join((TABLE, _SHRUNK, _GATHER, _FORGET, _TAKE))


def before(cursor: duckdb.DuckDBPyConnection, shrinking: list[str]) -> None:
    """Remember where these runs count, which may have less to say from now on."""
    cursor.execute(_SHRUNK, [shrinking])


def after(cursor: duckdb.DuckDBPyConnection, run_ids: list[str]) -> None:
    """Choose anew wherever these runs, whose numbers have changed, might count, and where the others counted."""
    cursor.execute(_GATHER, {"runs": run_ids})
    cursor.execute(_FORGET)
    cursor.execute(_TAKE)
    cursor.execute("DROP TABLE candidates")
    cursor.execute("DROP TABLE shrunk")
