"""Rows made in Python as a table like those that the store answers with: text stays text where all of it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

_TEXTS = (
    *("dtype", "implementation", "winner", "shape", "mode", "metric", "status", "baseline_status", "note"),
    *("statistic", "source", "run_id"),
)
_NUMBERS = (
    *("latency_ms", "speedup", "lowest", "highest", "p20", "p80", "value", "reduction", "gpu_memory_mb"),
    "peak_memory_mb",
)
_KINDS = dict.fromkeys(_TEXTS, "str") | dict.fromkeys(_NUMBERS, "float64")
_KINDS |= {"other_precision": "bool", "tied": "object", "failed": "object"}


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """The named columns; one that is not known above counts something, and may be missing somewhere."""
    made = {name: _column([row[name] for row in rows], _KINDS.get(name)) for name in columns}
    return pd.DataFrame(made, index=pd.RangeIndex(len(rows)), copy=False)


def _column(values: list[object], kind: str | None) -> pd.Series:
    return pd.Series(values, dtype=kind or ("Int64" if None in values else "int64"))
