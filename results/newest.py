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
_TOUCHED_BEFORE = f"CREATE OR REPLACE TEMP TABLE touched AS SELECT DISTINCT {_CASE} FROM newest WHERE run_id = ANY(?)"
_TOUCHED = f"""
    INSERT INTO touched SELECT DISTINCT {_CASE} FROM numbers JOIN slices USING (slice_id) WHERE run_id = ANY(?)
    EXCEPT SELECT {_CASE} FROM touched
"""
_FORGET = f"DELETE FROM newest WHERE ({_CASE}) IN (SELECT ({_CASE}) FROM touched)"
_TAKE = f"""
    INSERT INTO newest
    WITH aged AS (
        SELECT run_id, source, created, gpu_memory_mb,
               row_number() OVER (ORDER BY created DESC NULLS LAST, run_id)::INTEGER AS age FROM runs
    ), here AS (
        SELECT numbers.*, slices.* EXCLUDE (slice_id), aged.* EXCLUDE (run_id)
        FROM numbers JOIN slices USING (slice_id) JOIN aged USING (run_id) SEMI JOIN touched USING ({_CASE})
    ), ages AS (
        SELECT {_CASE}, [min(age), min(age) FILTER (status = 'ok')] AS ages
        FROM here GROUP BY {_CASE}, mode, timing, metric, implementation
    ), kept AS (SELECT DISTINCT {_CASE}, unnest(ages) AS age FROM ages)
    SELECT {_COLUMNS} FROM here SEMI JOIN kept USING ({_CASE}, age)
    ORDER BY gpu, workload, mask, mode, timing, metric, case_id, age, implementation
"""
LAYOUT = "".join((TABLE, _TOUCHED_BEFORE, _TOUCHED, _FORGET, _TAKE))


def before(cursor: duckdb.DuckDBPyConnection, run_ids: list[str]) -> None:
    """Remember where these runs count, before their numbers change."""
    cursor.execute(_TOUCHED_BEFORE, [run_ids])


def after(cursor: duckdb.DuckDBPyConnection, run_ids: list[str]) -> None:
    """Choose anew wherever these runs counted or might now."""
    cursor.execute(_TOUCHED, [run_ids])
    cursor.execute(_FORGET)
    cursor.execute(_TAKE)
    cursor.execute("DROP TABLE touched")
