"""What each implementation was seen to do, from stored results: a feature is what ran, or what was refused and why."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from results.implementations import FP8, facts_of
from results.query.declared import declared, with_precision
from results.slice import SEQLEN, Filters, level_in, on_map_of
from results.slice import where as filtered
from results.store.database import Store

# name -> the cells that have it, as SQL over `results`
FEATURES = {
    "bfloat16": "dtype = 'bfloat16'",
    "float16": "dtype = 'float16'",
    "float32": "dtype = 'float32'",
    "FP8 products": f"(dtype = '{FP8}' OR in_fp8)",
    "backward": "mode IN ('bwd', 'fwd_bwd', 'train')",
    "causal mask": "causal",
    "full mask": "NOT causal",
    "sliding window": "window_size > 0",
    "fewer key heads than query heads": "num_kv_heads < num_heads",
    "head_dim above 128": "head_dim > 128",
    "seqlen from 16k on": f"{SEQLEN} >= 16384",
    "seqlen from 64k on": f"{SEQLEN} >= 65536",
}
RAN, CHECKED, REFUSED, FAILED, NOT_TRIED = "ran", "checked", "refused", "failed", "not tried"


def features(store: Store, filters: Filters) -> pd.DataFrame:
    """Return a row a feature and implementation: `seen` (ran, checked, refused, failed or not tried), `numbers`, `why`.

    Checked is: its errors were taken, but no time. Refused is: every try ended as unsupported; failed: every try ended
    without a number for another reason.
    """
    level = level_in(filters)
    condition, params = filtered(Filters(gpu=filters.gpu, source=filters.source, run=filters.run))
    condition += f" AND {on_map_of(level)}"
    parts = [
        f"""SELECT {at} AS place, '{name}' AS feature, implementation,
                   count(*) FILTER (status = 'ok' AND timed AND {has}) AS numbers,
                   count(*) FILTER (status = 'ok' AND NOT timed AND {has}) AS errors, count(*) FILTER ({has}) AS tried,
                   count(*) FILTER (status = 'unsupported' AND {has}) AS refused,
                   any_value(note ORDER BY status = 'unsupported' DESC) FILTER (status <> 'ok' AND {has}) AS why
            FROM tries GROUP BY implementation"""
        for at, (name, has) in enumerate(FEATURES.items())
    ]
    table = store.query(
        f"""WITH tries AS (
                SELECT *, metric = 'latency_ms' AS timed, list_contains(?, implementation) AS in_fp8 FROM results
                WHERE (metric = 'latency_ms' OR starts_with(metric, 'error_')) AND status <> 'skipped' AND {condition})
            {" UNION ALL ".join(parts)} ORDER BY place, implementation""",
        [with_precision(store, "fp8", level.name), *params],
    )
    return table.assign(seen=[_seen(row) for row in table.to_dict("records")]).drop(columns=["place", "errors"])


def memory_growth(store: Store, implementations: Sequence[str]) -> dict[str, str]:
    """Return by name how memory grows with seqlen, where the algorithm is known."""
    words = {"matrix": "with seqlen squared", "linear": "with seqlen", None: "not known"}
    said = declared(store)
    return {name: words[facts_of(name, said).memory.growth] for name in implementations}


def _seen(row: dict) -> str:
    if row["numbers"]:
        return RAN
    if not row["tried"]:
        return NOT_TRIED
    if row["errors"]:
        return CHECKED
    return REFUSED if row["refused"] == row["tried"] else FAILED
