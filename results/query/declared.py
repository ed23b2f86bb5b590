"""What implementations declare of themselves, as the runs that hold them recorded it."""

from __future__ import annotations

import json
from typing import Any

from results.implementations import facts_of, known_names
from results.levels import names
from results.store.database import Store

_RUNS = """
    SELECT source = 'upload', implementations FROM runs WHERE implementations IS NOT NULL
    ORDER BY created NULLS FIRST, run_id DESC
"""
_MEASURED = """
    SELECT DISTINCT implementation FROM measurements
    WHERE run_id IN (SELECT run_id FROM runs WHERE source <> 'upload')
"""


def declared(store: Store, level: str = "op") -> dict[str, dict[str, Any]]:
    """Return by name what each implementation at that level declares; of several runs the newest counts.

    An upload declares only names that uploads alone hold, so that it changes nothing about other runs. If uploads
    contradict each other, the facts that they share count.
    """
    ours: dict[str, dict[str, Any]] = {}
    uploaded: dict[str, dict[str, Any]] = {}
    for is_upload, text in store.kept(_RUNS):
        said = {name: facts for name, facts in json.loads(text).items() if facts.get("level", "op") == level}
        if is_upload:
            shared = {name: uploaded[name].items() for name in said if name in uploaded}
            uploaded |= said
            for name, before in shared.items():
                uploaded[name] = {key: value for key, value in before if said[name].get(key) == value}
        else:
            ours |= said
    if not uploaded:
        return ours
    known = {*ours, *known_names(), *(name for (name,) in store.kept(_MEASURED))}
    return ours | {name: facts for name, facts in uploaded.items() if name not in known}


def colours(store: Store) -> dict[str, str]:
    """Return the colour of each implementation that has one, as #rrggbb; the operator's where levels differ."""
    by_level = [declared(store, level) for level in names()]
    said = {name: facts for each in (*by_level, declared(store)) for name, facts in each.items()}
    found = {name: facts_of(name, said) for name in (*known_names(), *said)}
    return {name: facts.colour for name, facts in found.items() if facts.colour}


def with_precision(store: Store, precision: str, level: str = "op") -> list[str]:
    """Return the implementations in the store that multiply in "tf32", "fp8", or float32 in "bf16x6", at a level."""
    said = declared(store, level)
    there = (name for (name,) in store.kept("SELECT DISTINCT implementation FROM measurements"))
    facts = {name: facts_of(name, said) for name in there}
    return sorted(name for name, each in facts.items() if precision in (each.precision, each.float32))
