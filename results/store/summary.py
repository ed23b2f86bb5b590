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

from collections.abc import Collection, Sequence

import duckdb

from results.counting import surpasses
from results.files.columns import COLUMNS
from results.levels import level_of, names
from results.metrics import MEMORY_METRICS
from results.slice import CASE_KEY, Filters, where
from results.slice import COLUMNS as SLICED
from results.sql import SqlFile

# 64 bits of a digest: among a million cases, the probability of a collision is one in ten million.
_TEXTS = ", ".join(f"coalesce({name}::VARCHAR, '')" for name in CASE_KEY.split(", "))
CASE_ID = f"md5_number_lower(concat_ws('|', {_TEXTS}))"
OF_SLICE = ("run_id", "gpu", "level", "workload", "mask", "shape", "mode", "timing", "metric")
OF_NUMBER = (
    "case_id", "seqlen", "head_dim", "dtype", "implementation", "status", "value", "std", "p20", "p80", "n",
    "statistic", "note", "time", "origin", "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim_v",
)  # fmt: skip
_TYPES = COLUMNS | {
    "case_id": "UBIGINT NOT NULL",
    "seqlen": "INTEGER",
    "implementation": "VARCHAR NOT NULL",
    "status": "VARCHAR NOT NULL",
    "time": "TIMESTAMP",
}
OF_RUN = ("source", "created", "gpu_memory_mb")
ANSWERED = ("run_id", "level", "metric", "mode", "timing", "shape", *OF_NUMBER, *OF_RUN)
_FILTERED = {name: name for name in (*OF_SLICE[1:-1], "source")} | {"run": "run_id"}
_EVERY_NUMBER = "numbers JOIN slices USING (slice_id) JOIN runs USING (run_id)"
_AT_ONCE = 25  # runs that are gathered at a time, so that the sort fits into the memory limit

# Columns of `slices` and `numbers`: their expressions on measurements and runs.
_EXPRESSIONS = {name: SLICED.get(name, name) for name in OF_SLICE} | {name: name for name in OF_NUMBER}
_EXPRESSIONS |= {"run_id": "run_id", "case_id": CASE_ID, "seqlen": SLICED["seqlen"]}
# Levels whose map has an axis for batch or heads; on other levels both are part of the shape.
_WITH_BATCH, _WITH_HEADS = (
    ", ".join(f"'{name}'" for name in names() if level_of(name).rows.field == field) for field in ("batch", "num_heads")
)
_QUERIES = SqlFile(__file__).filled(
    slice=", ".join(OF_SLICE),
    number=", ".join(OF_NUMBER),
    columns=", ".join((*OF_SLICE, *OF_NUMBER, *OF_RUN)),
    typed_slice=", ".join(f"{name} VARCHAR NOT NULL" for name in OF_SLICE),
    typed_number=", ".join(f"{name} {_TYPES[name]}" for name in OF_NUMBER),
    every_number=_EVERY_NUMBER,
    expressions=", ".join(f"{expression} AS {name}" for name, expression in _EXPRESSIONS.items()),
    metrics=", ".join(f"'{name}'" for name in ("latency_ms", *MEMORY_METRICS)),
    with_batch=_WITH_BATCH,
    with_heads=_WITH_HEADS,
    surpasses=surpasses("other", "run"),
)
TABLES = _QUERIES["tables"]
# A store with another layout is recreated, also if only a query here has changed.
LAYOUT = "".join(_QUERIES.values())


def bring_up_to_date(cursor: duckdb.DuckDBPyConnection, run_ids: list[str], *, shrinking: Collection[str] = ()) -> None:
    """Compute the rows of these runs again; a run that no longer exists leaves none.

    `shrinking` names the runs that may have lost numbers: removed, read again from the start, or with a new record.
    """
    cursor.execute(_QUERIES["shrunk"], [list(shrinking)])  # before `counting` changes
    cursor.execute(
        "DELETE FROM numbers WHERE slice_id IN (SELECT slice_id FROM slices WHERE run_id = ANY(?))", [run_ids]
    )
    for table in ("slices", "choices", "counts"):
        cursor.execute(f"DELETE FROM {table} WHERE run_id = ANY(?)", [run_ids])
    for start in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[start : start + _AT_ONCE]
        cursor.execute(_QUERIES["gather"], [some])
        for step in ("slices", "numbers", "choices"):
            cursor.execute(_QUERIES[step])
        cursor.execute("DROP TABLE gathered")
        cursor.execute(_QUERIES["counts"], [some])
    cursor.execute(_QUERIES["reordered"])
    cursor.execute(_QUERIES["candidates"], {"runs": run_ids})
    for step in ("forget", "take", "finish"):
        cursor.execute(_QUERIES[step])


def numbers(filters: Filters, metrics: Sequence[str], *, without: tuple[str, ...] = ()) -> tuple[str, list[object]]:
    """Return the query for the numbers of a slice, with its parameters.

    The query applies the filters of one value; the caller applies the filters that choose cases and implementations. It
    reads all runs if runs or sources are chosen, otherwise the runs that can count.
    """
    condition, params = where(filters, without=(*without, "implementation"), columns=_FILTERED, features="workload")
    table = _EVERY_NUMBER if filters.run or filters.source else "counting"
    of_metrics = f"metric IN ({', '.join('?' * len(metrics))})"
    return f"SELECT {', '.join(ANSWERED)} FROM {table} WHERE {of_metrics} AND {condition}", [*metrics, *params]
