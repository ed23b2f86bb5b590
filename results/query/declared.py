"""What implementations declare of themselves, as the runs that hold them recorded it."""

from __future__ import annotations

import json
from typing import Any

from results.implementations import facts_of, known_names
from results.levels import names
from results.store.database import Store


def declared(store: Store, level: str = "op") -> dict[str, dict[str, Any]]:
    """Return by name what each implementation at that level declares; of several runs the newest counts."""
    found: dict[str, dict[str, Any]] = {}
    for (text,) in store.kept(
        "SELECT implementations FROM runs WHERE implementations IS NOT NULL ORDER BY created NULLS FIRST, run_id DESC"
    ):
        found |= {name: facts for name, facts in json.loads(text).items() if facts.get("level", "op") == level}
    return found


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
