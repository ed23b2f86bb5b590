"""Which numbers a finding voids, looked up by run, implementation and the fields of a case.

A finding voids a number that cannot be, and one that cannot carry a claim: a win that chance explains, a time known
only roughly. What says where a time goes (launches, a backward of much work) voids nothing. The row that a finding is
about comes first in it; the others are its evidence, except in rules about a whole series.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.checks.finding import IMPOSSIBLE, Finding
from results.levels import level_of
from results.records import CASE_FIELDS, Measurement, Run
from results.slice import AS_PUBLISHED

UNRELIABLE = ("within_spread", "noisy", "no_spread", "thousandfold", "falls_with_work")  # doubtful, and no result
OF_SERIES = ("copied", "thousandfold", "no_spread")  # all rows of these are in doubt alike


@dataclass(frozen=True)
class VoidedNumber:
    """A number and the finding that voids it."""

    measurement: Measurement
    finding: Finding

    @property
    def sentence(self) -> str:
        """Return what is wrong with the number, with the arithmetic."""
        return self.finding.sentence


class VoidedNumbers:
    """The voided numbers of some runs; false where there are none."""

    def __init__(self, numbers: Iterable[VoidedNumber]) -> None:
        self._by_name: dict[tuple, list[VoidedNumber]] = {}
        for number in numbers:
            m = number.measurement
            self._by_name.setdefault((m.run_id, m.implementation, m.metric), []).append(number)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def about(self, measurement: Measurement) -> VoidedNumber | None:
        """Return the gravest finding that voids this number; None if there is none."""
        known = self._by_name.get((measurement.run_id, measurement.implementation, measurement.metric), ())
        found = [number for number in known if number.measurement.measurement_id == measurement.measurement_id]
        return _gravest(found)

    def of(
        self, run_id: str | None, implementation: str, *, metric: str = "latency_ms", **known: object
    ) -> VoidedNumber | None:
        """Return the gravest finding that voids a number of these names; None if there is none.

        `known` names mode, timing, seqlen or fields of the case; what it leaves out may be anything. `run_id` may list
        several, separated as tables list them.
        """
        found = [
            number
            for name in (run_id or "").split(", ")
            for number in self._by_name.get((name, implementation, metric), ())
            if all(_field(number.measurement, field) == _stored(value) for field, value in known.items())
        ]
        return _gravest(found)


def voided(findings: Iterable[Finding], runs: Iterable[tuple[Run, Sequence[Measurement]]]) -> list[VoidedNumber]:
    """Return the numbers of the runs that the findings void."""
    rows = {m.measurement_id: m for _, measurements in runs for m in measurements}
    return [
        VoidedNumber(rows[measurement_id], finding)
        for finding in findings
        if finding.weight == IMPOSSIBLE or finding.rule in UNRELIABLE
        for measurement_id in finding.measurement_ids[: None if finding.rule in OF_SERIES else 1]
        if measurement_id in rows
    ]


def _gravest(found: Iterable[VoidedNumber]) -> VoidedNumber | None:
    return min(found, key=lambda number: number.finding.weight != IMPOSSIBLE, default=None)


def _field(measurement: Measurement, name: str) -> object:
    if name == "seqlen":
        return getattr(measurement.case, level_of(measurement.case).columns.field)
    return getattr(measurement.case if name in CASE_FIELDS else measurement, name)


def _stored(value: object) -> object:
    """Return the value as records hold it: tables write a missing timing in words."""
    return None if value == AS_PUBLISHED else value
