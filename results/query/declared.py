"""What implementations declare of themselves, as the runs that hold them recorded it."""

from __future__ import annotations

import json
from typing import Any

from results.implementations import facts_of, known_names
from results.levels import names
from results.store.database import Store

_RUNS = """
    SELECT run_id, source = 'upload', implementations FROM runs WHERE implementations IS NOT NULL
    ORDER BY created NULLS FIRST, run_id DESC
"""
_UPLOADED = """
    SELECT DISTINCT run_id, implementation FROM measurements
    WHERE coalesce(level, 'op') = ? AND run_id IN (SELECT run_id FROM runs WHERE source = 'upload')
"""
_MEASURED = """
    SELECT DISTINCT implementation FROM measurements
    WHERE run_id IN (SELECT run_id FROM runs WHERE source <> 'upload')
"""


def declared(store: Store, level: str = "op") -> dict[str, dict[str, Any]]:
    """Return by name what each implementation at that level declares; of several runs the newest counts.

    What an upload declares describes its own rows: a name that other runs hold keeps their facts, and a fact counts for
    a name of uploads only if each upload with rows of that name declares it.
    """
    ours: dict[str, dict[str, Any]] = {}
    uploads: dict[str, dict[str, dict[str, Any]]] = {}  # by run, then by name
    for run_id, is_upload, text in store.kept(_RUNS):
        said = {name: facts for name, facts in json.loads(text).items() if facts.get("level", "op") == level}
        if is_upload:
            uploads[run_id] = said
        else:
            ours |= said
    if not uploads:
        return ours
    known = {*ours, *known_names(), *(name for (name,) in store.kept(_MEASURED))}
    found: dict[str, dict[str, Any]] = {}
    holding = {(run_id, name) for run_id, said in uploads.items() for name in said} | {*store.kept(_UPLOADED, [level])}
    for run_id, name in sorted(holding):
        if name not in known:
            facts = uploads.get(run_id, {}).get(name, {})
            shared = found.get(name, facts)
            found[name] = {key: value for key, value in shared.items() if facts.get(key) == value}
    return ours | {name: facts for name, facts in found.items() if facts}


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
