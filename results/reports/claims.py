"""Numbers that a report states in its prose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from results.records import Measurement
from results.reports.cells import ReportError
from results.reports.layout import Says, measure


@dataclass(frozen=True)
class Claim:
    """A sentence with numbers in it."""

    pattern: str  # finds the sentence; each named group is a printed figure
    origin: str  # where it stands
    says: Says  # of every figure
    figures: dict[str, Says]  # group -> what is said of it beside `says`
    note: str | None = None
    run: str = ""  # which of the report's runs it belongs to


def parse_claims(text: str, claims: Sequence[Claim], run_id: str) -> Iterator[Measurement]:
    """The figures of every claim. Raises ReportError if the text lacks one."""
    for claim in claims:
        match = re.search(claim.pattern, text)
        if not match:
            raise ReportError(f"The claim at {claim.origin!r} is missing; expected {claim.pattern!r}.")
        for group, says in claim.figures.items():
            origin = claim.origin if len(claim.figures) == 1 else f"{claim.origin} / {group}"
            said = {**claim.says, **says}
            yield measure(run_id, said, printed=match[group], origin=origin, notes=[claim.note])


def low_and_high(metric: str) -> dict[str, Says]:
    """The figures of a range: groups low and high of one metric."""
    return {
        "low": {"metric": metric, "note": "low end of a range"},
        "high": {"metric": metric, "note": "high end of a range"},
    }
