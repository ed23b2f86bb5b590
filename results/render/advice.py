"""Advice and features of a GPU as one Markdown text, with their numbers."""

from collections.abc import Callable

import pandas as pd

from results.recommend.advice import Advice, advise
from results.recommend.features import RAN, features, memory_growth
from results.render.markdown import markdown_table, table_of
from results.slice import Filters
from results.store.database import Store

_COLUMNS: dict[str, Callable[[Advice], str]] = {
    "use case": lambda one: one.use_case,
    "shapes": lambda one: one.about,
    "take": lambda one: one.implementation,
    "of fastest": lambda one: f"{one.behind:.2f}×",
    "worst": lambda one: f"{one.worst:.2f}×",
    "wins": lambda one: str(one.wins),
    "ties": lambda one: str(one.ties),
    "cases": lambda one: f"{one.covered} of {one.cases}",
    "speedup": lambda one: f"{one.speedup:.2f}×" if one.speedup else "",
    "less memory": lambda one: f"{one.memory_reduction:.1f}×" if one.memory_reduction else "",
    "SDPA": lambda one: f"{one.backend} {one.backend_behind:.2f}×" if one.backend else "",
}


def render(store: Store, filters: Filters) -> str:
    """Return the advice for the GPU of the filters, and the features of each implementation there."""
    found = advise(store, filters)
    parts = [f"# What to use when on {filters.gpu}"]
    parts.append(table_of(found, _COLUMNS) if found else "No use case was measured here.")
    if found:
        parts.append(
            "Recommended: the implementation closest to the fastest one on average (of fastest, a geometric mean). "
            f"Missing numbers count as {filters.baseline}. Speedup and less memory are over {filters.baseline}, "
            "geometric means of the shapes that both have. SDPA: the best SDPA backend of PyTorch."
        )
        parts.append(f"Runs: {', '.join(sorted({run for one in found for run in one.runs}))}.")
    parts += ["## Features by implementation", _features_table(store, features(store, filters))]
    parts.append("A number is how many latencies there are; the words say how every try ended.")
    return "\n\n".join(parts) + "\n"


def _features_table(store: Store, table: pd.DataFrame) -> str:
    names = list(dict.fromkeys(table["implementation"]))
    growth = memory_growth(store, names)
    cells = {
        (row["feature"], row["implementation"]): str(row["numbers"]) if row["seen"] == RAN else row["seen"]
        for row in table.to_dict("records")
    }
    rows = [[feature, *(cells[feature, name] for name in names)] for feature in dict.fromkeys(table["feature"])]
    return markdown_table(["feature", *names], [*rows, ["memory grows", *growth.values()]])
