"""Which numbers a finding voids, by the id of their measurement.

A finding voids a number that cannot be, and one that cannot carry a claim: a win that chance explains, a time known
only roughly. What says where a time goes (launches, a backward of much work) voids nothing. The row that a finding is
about comes first in it; the others are its evidence, except in rules about a whole series.
"""

from __future__ import annotations

from collections.abc import Iterable

from results.checks.finding import IMPOSSIBLE, Finding

UNRELIABLE = ("within_spread", "noisy", "no_spread", "thousandfold", "falls_with_work")  # doubtful, and no result
OF_SERIES = ("copied", "thousandfold", "no_spread")  # all rows of these are in doubt alike


def voided(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return of each voided number the gravest finding that voids it, by measurement id."""
    found: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: finding.weight != IMPOSSIBLE):
        if finding.weight == IMPOSSIBLE or finding.rule in UNRELIABLE:
            ids = finding.measurement_ids if finding.rule in OF_SERIES else finding.measurement_ids[:1]
            found |= {measurement_id: finding for measurement_id in ids if measurement_id not in found}
    return found
