"""Layers: every kind, shape, mode and implementation of a slice, the share of attention, and ranges of speedup."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from results import levels
from results.derive import geometric_mean
from results.implementations import facts_of
from results.query.declared import of_rows
from results.records import CASE_FIELDS, Case
from results.slice import Filters, where
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

LEVEL = "layer"
# In the order of the level's kinds and passes.
_ORDER, _MODES = (
    f"list_position({list(known)}, {column})"
    for known, column in ((levels.level_of(LEVEL).subjects, "subject"), (levels.level_of(LEVEL).modes, "mode"))
)
_RANGES = ("implementation", "mode", "layers", "low", "mean", "high")
_DUELS = ("dtype", "mode", "layers", "low", "mean", "high", "attention", "behind")


def rows(store: Store, filters: Filters) -> pd.DataFrame:
    """Return a row a case, mode and implementation, of each case all of one run.

    `speedup` is over the slice's baseline, `share` the time of the attention alone in percent of the layer's; both are
    missing where a number is. `layer` names kind and shape without dtype and mask.
    """
    condition, params = where(filters)
    sql = _SQL("rows", level=LEVEL, condition=condition, order=_ORDER, modes=_MODES)
    table = store.query(sql, [*params, filters.baseline, filters.baseline])
    return table.assign(layer=[_named(row) for row in table[[*CASE_FIELDS]].to_dict("records")])


def ranges(table: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return by implementation and mode the lowest, mean and highest speedup over all layers of a table."""
    known = table[table["speedup"].notna() & (table["implementation"] != baseline)]
    found = [
        {"implementation": name, "mode": mode, **_span(of_it["speedup"].tolist())}
        for (name, mode), of_it in known.groupby(["implementation", "mode"], sort=True)
    ]
    return pd.DataFrame(found, columns=[*_RANGES])


def duels(store: Store, filters: Filters) -> pd.DataFrame:
    """Return by dtype and mode how much faster our best is than the best of PyTorch's, layer by layer.

    `attention` is the mean ratio of their attentions alone, missing where none was timed; `behind` names the layers in
    which ours is slower. Reduced precision takes no part.
    """
    table, said = rows(store, filters), of_rows(store, LEVEL)
    modes = list(levels.level_of(LEVEL).modes)
    known = table[table["latency_ms"].notna() & table["mode"].isin(modes)]
    facts = [facts_of(name, said, run) for name, run in zip(known["implementation"], known["run_id"], strict=True)]
    known = known.assign(family=[None if each.reduced else each.family for each in facts])
    groups = dict(list(known.groupby(["dtype", "mode"])))
    found = []
    for dtype, mode in sorted(groups, key=lambda key: (key[0], modes.index(key[1]))):
        ratios = _ratios(groups[dtype, mode])
        if len(ratios):
            alone = ratios["attention"].dropna().tolist()
            found.append(
                {"dtype": dtype, "mode": mode, **_span(ratios["layer"].tolist())}
                | {"attention": geometric_mean(alone) if alone else None}
                | {"behind": ", ".join(ratios.index[ratios["layer"] < 1])}
            )
    return pd.DataFrame(found, columns=[*_DUELS])


def _ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Return of each layer the best time of PyTorch's over the best of ours: of the `layer`, of their `attention`."""
    best = table.loc[table.groupby(["layer", "family"], sort=False)["latency_ms"].idxmin()]
    if not {"own", "pytorch"} <= set(best["family"]):
        return pd.DataFrame(columns=["layer", "attention"])
    times = best.set_index(["layer", "family"])[["latency_ms", "attention_ms"]].unstack()
    times = times.reindex(table["layer"].unique())  # in the order of the table
    whole, alone = (times[name, "pytorch"] / times[name, "own"] for name in ("latency_ms", "attention_ms"))
    return pd.DataFrame({"layer": whole, "attention": alone}).dropna(subset="layer")


def _span(values: Sequence[float]) -> dict[str, object]:
    return {"layers": len(values), "low": min(values), "mean": geometric_mean(values), "high": max(values)}


def _named(fields: dict) -> str:
    """Return kind and shape: gqa B2 H32 KV8 D64 S2048."""
    said = {name: None if pd.isna(value) else value for name, value in fields.items()}
    whole: dict[str, Any] = {name: int(value) if isinstance(value, float) else value for name, value in said.items()}
    return levels.level_of(LEVEL).short(Case(**{**whole, "dtype": None, "causal": None}))
