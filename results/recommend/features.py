"""What each implementation was seen to do: a feature is what ran or was checked, or what was refused and why.

Features that are a field of a case come from stored results. Those of a call alone (softcap, packed sequences) come
from what `kernels.tools.check_features` recorded of a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from results import paths
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
RECORD = "features.json"  # among what ships: GPU -> implementation -> feature -> error over what is allowed, or why not
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
    table = table.assign(seen=[_seen(row) for row in table.to_dict("records")]).drop(columns=["place", "errors"])
    if level.name != "op":
        return table
    of_calls = _of_calls(filters.gpu, list(dict.fromkeys(table["implementation"])))
    return pd.concat([table, pd.DataFrame(of_calls, columns=table.columns)], ignore_index=True) if of_calls else table


def memory_growth(store: Store, implementations: Sequence[str]) -> dict[str, str]:
    """Return by name how memory grows with seqlen, where the algorithm is known."""
    words = {"matrix": "with seqlen squared", "linear": "with seqlen", None: "not known"}
    said = declared(store)
    return {name: words[facts_of(name, said).memory.growth] for name in implementations}


def _of_calls(gpu: str | None, names: Sequence[str]) -> list[dict]:
    """Return rows like those of `features` for what was recorded of a GPU; none without a record."""
    path = paths.PUBLISHED / RECORD
    record: dict[str, dict[str, float | str]] = json.loads(path.read_text()).get(gpu, {}) if path.exists() else {}
    every = dict.fromkeys(feature for of_name in record.values() for feature in of_name)
    rows = []
    for feature in every:
        for name in names:
            found = record.get(name, {}).get(feature)
            refused = isinstance(found, str)
            seen = NOT_TRIED if found is None else REFUSED if refused else CHECKED if found <= 1 else FAILED
            why = found if refused else f"{found} times the error that is allowed" if seen == FAILED else None
            row = {"feature": feature, "implementation": name, "numbers": 0, "tried": int(found is not None)}
            rows.append({**row, "refused": int(refused), "why": why, "seen": seen})
    return rows


def _seen(row: dict) -> str:
    if row["numbers"]:
        return RAN
    if not row["tried"]:
        return NOT_TRIED
    if row["errors"]:
        return CHECKED
    return REFUSED if row["refused"] == row["tried"] else FAILED
