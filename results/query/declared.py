"""What implementations declare of themselves, as the runs that hold them recorded it."""

import json
from collections.abc import Callable
from typing import Any

from results.implementations import Declared, ImplementationFacts, facts_of, known_names
from results.levels import names
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)


def declared(store: Store, level: str = "op") -> dict[str, dict[str, Any]]:
    """Return by name what each implementation at that level declares, for what has no single run, such as a legend.

    Of several runs the newest counts. A name that only uploads hold has the facts that all uploads which declare it
    share; facts of other names do not come from uploads. `of_rows` has the facts of rows.
    """
    ours, uploads = _said(store, level)
    known = {*ours, *known_names(), *(name for (name,) in store.kept(_SQL("measured")))} if uploads else set()
    found: dict[str, dict[str, Any]] = {}
    for (_, name), facts in uploads.items():
        if name not in known and facts:
            found[name] = {key: value for key, value in found.get(name, facts).items() if facts.get(key) == value}
    return ours | found


def of_rows(store: Store, level: str = "op") -> Declared:
    """Return what implementations declare, for `facts_of` with the run of a row.

    The facts of an upload have its run and the name as their key, and count for its own rows alone.
    """
    ours, uploads = _said(store, level)
    return {**ours, **uploads}


def _said(store: Store, level: str) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], dict[str, Any]]]:
    """Return the facts by name of the runs that are no uploads, and those of uploads by run and name."""
    ours: dict[str, dict[str, Any]] = {}
    uploads: dict[tuple[str, str], dict[str, Any]] = {}
    for run_id, is_upload, text in store.kept(_SQL("runs")):
        said = {name: facts for name, facts in json.loads(text).items() if facts.get("level", "op") == level}
        if is_upload:
            uploads |= {(run_id, name): facts for name, facts in said.items()}
        else:
            ours |= said
    return ours, uploads


def colours(store: Store) -> dict[str, str]:
    """Return the colour of each implementation that has one, as #rrggbb; the operator's where levels differ."""
    by_level = [declared(store, level) for level in names()]
    said = {name: facts for each in (*by_level, declared(store)) for name, facts in each.items()}
    found = {name: facts_of(name, said) for name in (*known_names(), *said)}
    return {name: facts.colour for name, facts in found.items() if facts.colour}


def with_precision(store: Store, precision: str, level: str = "op") -> list[str]:
    """Return as "run/implementation" what multiplies in "tf32", "fp8", or float32 in "bf16x6", at a level."""
    return with_facts(store, level, lambda facts: precision in (facts.precision, facts.float32))


def with_facts(store: Store, level: str, wanted: Callable[[ImplementationFacts], bool]) -> list[str]:
    """Return as "run/implementation" what declares the facts that are wanted, at a level."""
    said = of_rows(store, level)
    there = store.kept("SELECT DISTINCT run_id, implementation FROM measurements")
    return sorted(f"{run_id}/{name}" for run_id, name in there if wanted(facts_of(name, said, run_id)))
