"""Impossible latencies, found by the checks that need only one row.

Maps run these checks for each slice that they draw. Checking a whole run takes half a second, so the findings of the
other rules are only on the page Findings and in the panel of a cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from results.checks import CHECKS
from results.checks.finding import Numbers
from results.records import Measurement, Run, Status

if TYPE_CHECKING:
    from results.store.database import Store

_OF_ONE_ROW = frozenset(("above_peak", "above_bandwidth", "below_launch"))
_FACTS = ("run_id", "source", "gpu_name", "device_type", "empty_launch_ms", "implementations")


def doubts(store: Store, measurements: Iterable[Measurement]) -> dict[str, str]:
    """Return the reason why a latency is impossible, as a sentence with its arithmetic, by measurement id."""
    rows = list(measurements)
    wanted = sorted({row.run_id for row in rows if row.status is Status.OK})
    facts = store.rows(f"SELECT {', '.join(_FACTS)} FROM runs WHERE run_id IN ?", [wanted]) if wanted else []
    found = (dict(zip(_FACTS, row, strict=True)) for row in facts)
    runs = (Run(**of | {"implementations": json.loads(of["implementations"] or "null")}) for of in found)
    return doubts_of(runs, rows)


def doubts_of(runs: Iterable[Run], measurements: Iterable[Measurement]) -> dict[str, str]:
    """Return the same for measurements of some runs, without a store."""
    rows = [row for row in measurements if row.status is Status.OK]
    numbers = Numbers((run, [row for row in rows if row.run_id == run.run_id]) for run in runs)
    rules = (rule for rule in CHECKS if rule.name in _OF_ONE_ROW)
    return {about[0].measurement_id: words for rule in rules for about, words in rule.look(numbers, *rule.more)}
