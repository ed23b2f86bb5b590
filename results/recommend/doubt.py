"""Which latencies cannot be what they say, by the checks that need no other row to say so.

A map of cells asks this of each slice it draws, so only rules of a single row are asked: a whole run takes half a
second to check. What the other rules say of a row stands on the page Findings and beside a chosen cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from results.checks import CHECKS
from results.checks.finding import Numbers
from results.records import Measurement, Run, Status
from results.store.database import Store

_OF_ONE_ROW = frozenset(("above_peak", "above_bandwidth", "below_launch"))
_FACTS = ("run_id", "source", "gpu_name", "device_type", "empty_launch_ms", "implementations")


def doubts(store: Store, measurements: Iterable[Measurement]) -> dict[str, str]:
    """Return by measurement id why a latency cannot be what it says, in a sentence with its arithmetic."""
    rows = [row for row in measurements if row.status is Status.OK]
    wanted = sorted({row.run_id for row in rows})
    facts = store.rows(f"SELECT {', '.join(_FACTS)} FROM runs WHERE run_id IN ?", [wanted]) if wanted else []
    numbers = Numbers((run, [row for row in rows if row.run_id == run.run_id]) for run in map(_run, facts))
    looks = (rule.look for rule in CHECKS if rule.name in _OF_ONE_ROW)
    return {about[0].measurement_id: sentence for look in looks for about, sentence in look(numbers)}


def _run(row: tuple) -> Run:
    facts = dict(zip(_FACTS, row, strict=True))
    return Run(**facts | {"implementations": json.loads(facts["implementations"] or "null")})
