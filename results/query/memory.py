"""The parts of a call's memory: inputs, saved tensors and workspace, as measured and by formula."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import pandas as pd

from results import levels
from results.implementations import Declared, facts_of
from results.levels.tensors import kv_cache_mb
from results.query.declared import of_rows
from results.records import CASE_FIELDS
from results.slice import Filters, level_in, where
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)
# The activations are measured over forward and backward in every mode.
MEASURED = ("inputs_memory_mb", "activation_memory_mb", "extra_memory_mb", "peak_memory_mb", "reserved_memory_mb")
PREDICTED = ("given", "returned", "matrices", "workspace", "peak", "kv_cache")  # by formula
_CASE = ("dtype", "seqlen_q", "seqlen_k", "batch", "num_heads", "num_kv_heads", "head_dim", "head_dim_v", "latent_dim")
_KEY = (*_CASE, *(name for name in CASE_FIELDS if name not in _CASE))
COLUMNS = ("implementation", *_CASE, "shape", "mode", "run_id", *MEASURED, *PREDICTED)


def parts(store: Store, filters: Filters, runs: Sequence[str]) -> pd.DataFrame:
    """Return a row an implementation and case of those runs, in the slice's mode."""
    condition, params = where(replace(filters, run=tuple(sorted(runs))), without=("timing", "mode"))
    values = ", ".join(f"max(value) FILTER (metric = '{name}') AS {name}" for name in MEASURED)
    sql = _SQL("parts", key=", ".join(_KEY), values=values, condition=condition)
    table = store.query(sql, [list(MEASURED), filters.mode, *params]).assign(mode=filters.mode)
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    said = of_rows(store, level_in(filters).name)
    predicted = pd.DataFrame(
        [_predicted(row, said) for row in rows], index=table.index, columns=[*PREDICTED], dtype=float
    )
    return table.join(predicted)[[*COLUMNS]]


def _predicted(row: dict, said: Declared) -> dict[str, float | None]:
    law, cache = facts_of(row["implementation"], said, row["run_id"]).memory, kv_cache_mb(row)
    found = levels.memory_parts(row, law, row["mode"])
    if found is None:
        return {"peak": levels.memory_mb(row, law, row["mode"]), "kv_cache": cache}
    return {**asdict(found), "peak": found.peak, "kv_cache": cache}
