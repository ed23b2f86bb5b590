"""Features of implementations, as observed: what ran, what was only checked, and what was refused and why.

Features with a field in Case come from stored results. The others (softcap, packed sequences) come from the record that
`runner.validate.features` makes on a GPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from results.capabilities import CAPABILITIES, is_right, record
from results.implementations import FP8, facts_of
from results.paths import toml_of
from results.query.declared import declared, with_precision
from results.slice import SEQLEN, Filters, level_in, on_map_of
from results.slice import where as filtered
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)
# name -> SQL condition on the rows of `results` that have the feature
FEATURES = {
    CAPABILITIES.get(name, name): condition.format(FP8=FP8, SEQLEN=SEQLEN)
    for name, condition in toml_of(__file__).items()
}
RAN, CHECKED, REFUSED, FAILED, NOT_TRIED = "ran", "checked", "refused", "failed", "not tried"
_SEEN = {"RAN": RAN, "CHECKED": CHECKED, "REFUSED": REFUSED, "FAILED": FAILED, "NOT_TRIED": NOT_TRIED}


def features(store: Store, filters: Filters) -> pd.DataFrame:
    """Return a row for each feature and implementation with `seen`, `numbers` and `why`.

    `seen` is ran, checked (errors were measured, but no time), refused (every try ended as unsupported), failed (no try
    has a number, for another reason) or not tried.
    """
    level = level_in(filters)
    condition, params = filtered(Filters(gpu=filters.gpu, source=filters.source, run=filters.run))
    condition += f" AND {on_map_of(level)}"
    parts = (_SQL("tried", at=at, feature=name, has=has) for at, (name, has) in enumerate(FEATURES.items()))
    sql = _SQL("features", condition=condition, parts=" UNION ALL ".join(parts), **_SEEN)
    table = store.query(sql, [with_precision(store, "fp8", level.name), *params])
    if not level.one_attention:
        return table
    of_calls = _of_calls(filters.gpu, list(dict.fromkeys(table["implementation"])))
    if not of_calls:
        return table
    ran = table["seen"] == RAN
    joined = pd.concat([table[ran], pd.DataFrame(of_calls, columns=table.columns), table[~ran]])
    joined = joined.drop_duplicates(["feature", "implementation"])  # prefer what ran to what was checked
    places = {name: place for place, name in enumerate(dict.fromkeys([*FEATURES, *joined["feature"]]))}
    return joined.sort_values(
        ["feature", "implementation"],
        key=lambda column: column.map(places) if column.name == "feature" else column,
        ignore_index=True,
    )


def memory_growth(store: Store, implementations: Sequence[str]) -> dict[str, str]:
    """Return the growth of memory with seqlen in words, by implementation."""
    words = {"matrix": "with seqlen squared", "linear": "with seqlen", None: "not known"}
    said = declared(store)
    return {name: words[facts_of(name, said).memory.growth] for name in implementations}


def _of_calls(gpu: str | None, names: Sequence[str]) -> list[dict]:
    """Return rows like those of `features` from the record of a GPU; none without a record."""
    entry = record().get(gpu or "")
    found: Mapping[str, Mapping[str, Any]] = entry["implementations"] if entry else {}
    there = {capability for of_name in found.values() for capability in of_name}
    return [
        {"feature": words, "implementation": name, "numbers": 0} | _checked(found.get(name, {}).get(capability))
        for capability, words in CAPABILITIES.items()
        if capability in there
        for name in names
    ]


def _checked(result: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a recorded check as a part of a row."""
    if result is None:
        return {"tried": 0, "refused": 0, "why": None, "seen": NOT_TRIED}
    if isinstance(result, str):
        return {"tried": 1, "refused": 1, "why": result, "seen": REFUSED}
    if is_right(result):
        return {"tried": 1, "refused": 0, "why": None, "seen": CHECKED}
    largest = max((error for error in result["errors"].values() if error is not None), default=0.0)
    why = f"{largest} times the error that is allowed" if largest > 1 else result["why"]
    return {"tried": 1, "refused": 0, "why": why, "seen": FAILED}
