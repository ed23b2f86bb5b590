"""Prefill over a cache and mixed batches: the times of each batch, from the run that counts for it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from results import batches
from results.counting import counting_run
from results.records import CASE_FIELDS
from results.slice import CASE_KEY
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

COLUMNS = (
    "spec", "shape", "dtype", "implementation", "latency_ms", "of_fastest", "of_separate", "of_contiguous", "status",
    "note", "run_id",
)  # fmt: skip
SEPARATE = "triton_separate"  # computes the sequences with few query tokens in a call of its own
_OF_PAGES = ", ".join(name for name in CASE_FIELDS if name != "page_size")
_FEW = 16  # query tokens of a decoding step, which the page Decode shows
_WANTED = f"level = 'decode' AND metric = 'latency_ms' AND (seqlen_q > {_FEW} OR contains(lengths, 'q'))"


def there(store: Store) -> list[tuple[str, str]]:
    """Return GPU and timing of each slice with a time, most times first."""
    return store.rows(_SQL("there", wanted=_WANTED))


def rows(store: Store, gpu: str, timing: str) -> pd.DataFrame:
    """Return a row for each batch and implementation; see COLUMNS.

    `of_fastest` is the latency over that of the fastest implementation, `of_separate` over that of separate calls, and
    `of_contiguous` over that of the same implementation and a contiguous cache. All are within one run.
    """
    sql = _SQL(
        "rows", wanted=_WANTED, counting=counting_run(CASE_KEY, "measured > 1"), separate=SEPARATE, of_pages=_OF_PAGES
    )
    table = store.query(sql, [gpu, timing])
    return table.assign(spec=[_spec(row) for row in table.to_dict("records")])[[*COLUMNS]]


def _spec(row: Mapping[str, Any]) -> str:
    if batches.is_spec(row["lengths"]):
        return row["lengths"]
    if pd.isna(row["batch"]) or pd.isna(row["seqlen_k"]):
        return "not stated"
    return batches.spelled({(int(row["seqlen_q"]), int(row["seqlen_k"])): int(row["batch"])})
