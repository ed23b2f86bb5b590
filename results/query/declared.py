"""What implementations declare of themselves, as the runs that hold them recorded it."""

from __future__ import annotations

import json
from typing import Any

from results.implementations import facts_of, known_names
from results.store.database import Store


def declared(store: Store) -> dict[str, dict[str, Any]]:
    """Return by name what each implementation declares; of several runs the newest counts."""
    found: dict[str, dict[str, Any]] = {}
    for (text,) in store.kept(
        "SELECT implementations FROM runs WHERE implementations IS NOT NULL ORDER BY created NULLS FIRST, run_id DESC"
    ):
        found |= json.loads(text)
    return found


def colours(store: Store) -> dict[str, str]:
    """Return the colour of each implementation that has one, as #rrggbb."""
    said = declared(store)
    facts = {name: facts_of(name, said) for name in (*known_names(), *said)}
    return {name: fact.colour for name, fact in facts.items() if fact.colour}


def with_precision(store: Store, precision: str) -> list[str]:
    """Return the implementations in the store that round factors to that precision ("tf32" or "fp8")."""
    said = declared(store)
    names = (name for (name,) in store.kept("SELECT DISTINCT implementation FROM measurements"))
    return sorted(name for name in names if facts_of(name, said).precision == precision)
