"""Advice and features of a GPU as one Markdown text, with their numbers."""

import pandas as pd

from results.recommend.advice import Advice, advise
from results.recommend.features import RAN, features, memory_growth
from results.render.markdown import markdown_table
from results.slice import Filters
from results.store.database import Store

_ADVICE = (
    "use case", "shapes", "take", "of fastest", "worst", "wins", "ties", "cases", "speedup", "less memory", "SDPA",
)  # fmt: skip


def render(store: Store, filters: Filters) -> str:
    """Return the advice for the GPU of the filters, and the features of each implementation there."""
    found = advise(store, filters)
    parts = [f"# What to use when on {filters.gpu}"]
    parts.append(markdown_table(_ADVICE, [_row(one) for one in found]) if found else "No use case was measured here.")
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


def _row(one: Advice) -> list[str]:
    backend = f"{one.backend} {one.backend_behind:.2f}×" if one.backend else ""
    return [
        one.use_case,
        one.about,
        one.implementation,
        f"{one.behind:.2f}×",
        f"{one.worst:.2f}×",
        str(one.wins),
        str(one.ties),
        f"{one.covered} of {one.cases}",
        f"{one.speedup:.2f}×" if one.speedup else "",
        f"{one.memory_reduction:.1f}×" if one.memory_reduction else "",
        backend,
    ]


def _features_table(store: Store, table: pd.DataFrame) -> str:
    names = list(dict.fromkeys(table["implementation"]))
    growth = memory_growth(store, names)
    cells = {
        (row["feature"], row["implementation"]): str(row["numbers"]) if row["seen"] == RAN else row["seen"]
        for row in table.to_dict("records")
    }
    rows = [[feature, *(cells[feature, name] for name in names)] for feature in dict.fromkeys(table["feature"])]
    return markdown_table(["feature", *names], [*rows, ["memory grows", *growth.values()]])
