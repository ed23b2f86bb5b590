"""A finding and what it voids, a check, and the numbers that checks look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from results import levels
from results.grouping import grouped
from results.implementations import ImplementationFacts, facts_of
from results.levels import level_of
from results.paths import toml_of
from results.records import CASE_FIELDS, Case, Measurement, Run, Status, case_to_json

if TYPE_CHECKING:
    from results.checks.stolen import Elsewhere

DECLARED = toml_of(__file__, "checks.toml")
IMPOSSIBLE = "impossible"  # contradicts arithmetic or the device
_CASES = 8192  # cases whose work is cached, because several checks count it
DOUBTFUL = "doubtful"  # possible, but not a reliable result
NOTE = "note"  # right, but not printed as exactly as it could be


@dataclass(frozen=True)
class Finding:
    """What a check has to say about some rows; the rows stay as they are."""

    rule: str
    weight: str  # impossible, doubtful or note
    run_id: str
    measurement_ids: tuple[str, ...]  # the row it is about comes first
    sentence: str  # with the arithmetic
    origin: str | None = None  # position of the row in its source


# A doubt of these voids its number: a win that chance explains, a time known only roughly. What says where a time goes
# (launches, a backward of much work) voids nothing.
UNRELIABLE = ("within_spread", "noisy", "no_spread", "thousandfold", "falls_with_work")
_BUT_SEQLEN = attrgetter(*(name for name in CASE_FIELDS if name not in ("seqlen_q", "seqlen_k")))
# All rows of these findings are in doubt; otherwise only the first row.
OF_SERIES = ("copied", "thousandfold", "no_spread", "same_as_run", "another_chip")


def voided(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return of each number that a finding voids the gravest one that does, by measurement id."""
    found: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: finding.weight != IMPOSSIBLE):
        if finding.weight == IMPOSSIBLE or finding.rule in UNRELIABLE:
            ids = finding.measurement_ids if finding.rule in OF_SERIES else finding.measurement_ids[:1]
            found |= {measurement_id: finding for measurement_id in ids if measurement_id not in found}
    return found


Found = Iterator[tuple[Sequence[Measurement], str]]  # the rows that a finding is about, and its sentence


@dataclass(frozen=True)
class Check:
    """One check: it yields the rows that it is about and a sentence."""

    name: str
    title: str
    weight: str
    look: Callable[..., Found]
    more: tuple[str, ...] = ()  # arguments of `look` after the numbers


class Numbers:
    """The rows of runs that belong together: one run, or all runs of a published report."""

    def __init__(self, runs: Iterable[tuple[Run, Sequence[Measurement]]], elsewhere: Elsewhere | None = None) -> None:
        runs = list(runs)
        self.elsewhere = elsewhere  # all runs that are here
        self.runs = {run.run_id: run for run, _ in runs}
        self.rows = [m for _, measurements in runs for m in measurements]
        self._facts: dict[tuple[str, str], ImplementationFacts] = {}

    def of(self, *metrics: str) -> list[Measurement]:
        """Return the rows of those metrics that have a number."""
        return [m for metric in metrics for m in self._by_metric.get(metric, ())]

    def latencies_of(self, run_id: str) -> list[Measurement]:
        """Return the times of one run."""
        return [m for m in self.of("latency_ms") if m.run_id == run_id and m.value]

    def grouped(self, key: Callable[[Measurement], Any], *metrics: str) -> dict[Any, list[Measurement]]:
        """Return the rows of those metrics that have a number, by key."""
        return grouped(self.of(*metrics), key)

    def over_seqlen(self, metric: str) -> Iterator[list[Measurement]]:
        """Yield the rows of each series over seqlen, the shortest first."""
        square = (m for m in self.of(metric) if m.case.seqlen_q and m.case.seqlen_q == m.case.seqlen_k)
        for rows in grouped(square, series_of).values():
            yield sorted(rows, key=lambda m: m.case.seqlen_q)

    def modes(self) -> Iterator[dict[str | None, Measurement]]:
        """Yield the latencies of each case, implementation and timing, by mode."""
        for rows in self.grouped(attrgetter("run_id", "case", "implementation", "timing"), "latency_ms").values():
            yield {m.mode: m for m in reversed(rows)}

    def run(self, measurement: Measurement) -> Run:
        """Return the run of a row."""
        return self.runs[measurement.run_id]

    def facts(self, measurement: Measurement) -> ImplementationFacts:
        """Return what is known of a row's implementation."""
        key = measurement.run_id, measurement.implementation
        if key not in self._facts:
            self._facts[key] = facts_of(measurement.implementation, self.run(measurement).implementations)
        return self._facts[key]

    @cached_property
    def _by_metric(self) -> dict[str, list[Measurement]]:
        return grouped((m for m in self.rows if m.status is Status.OK), attrgetter("metric"))


def series_of(m: Measurement) -> tuple:
    """Return what the rows of a series over seqlen have in common."""
    return m.run_id, _BUT_SEQLEN(m.case), m.implementation, m.timing, m.mode


@lru_cache(maxsize=_CASES)
def flops_range(case: Case, mode: str | None) -> tuple[float, float] | None:
    """Return the fewest and most operations the case can mean; no window where none is said.

    Where the mask is not said it can be causal or full, and where the mode is not said any of the level's modes.
    """
    said = {**case_to_json(case), "window_size": case.window_size or 0}
    masks = (True, False) if case.causal is None else (case.causal,)
    modes = (mode,) if mode or level_of(case).whole_model else tuple(level_of(case).modes)
    found = [levels.flops({**said, "causal": causal}, each) for causal in masks for each in modes]
    return (min(found), max(found)) if all(found) else None


@lru_cache(maxsize=_CASES)
def bytes_moved(case: Case, mode: str | None) -> float | None:
    """Return the least bytes of one call, as results.levels counts them; None if the case leaves a size open.

    Where the mode is not said, it is the one that moves least.
    """
    modes = (mode,) if mode or level_of(case).whole_model else tuple(level_of(case).modes)
    found = [levels.bytes_moved(case, each) for each in modes]
    return min(found) if all(found) else None


_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.(?P<decimals>\d+))?(?:[eE](?P<exponent>[+-]?\d+))?")


def printed_range(measurement: Measurement) -> tuple[float, float]:
    """Return from where to where a printed number can have been rounded; the number itself if nothing was printed."""
    match = _NUMBER.search(measurement.printed or "")
    value = measurement.value
    if not match or not value:
        return value, value
    number = float(match[0].replace(",", ""))
    unit = 10.0 ** (int(match["exponent"] or 0) - len(match["decimals"] or ""))
    half = unit / 2 * (value / number if number else 1.0)  # scaled as the unit was: GB, PFLOPS
    return value - half, value + half


def said(sentence: str, *rows: Measurement, **facts: Any) -> tuple[Sequence[Measurement], str]:
    """Return a finding about rows, in a sentence of checks.toml: a rule's name, and which of its sentences."""
    rule, _, which = sentence.partition(" ")
    text: str = DECLARED[rule][f"says_{which}" if which else "says"]
    return rows, text.format_map(_Facts(facts, m=rows[0], rows=rows))


class _Facts(dict[str, Any]):
    """The facts of a sentence; the words for a row are worked out where a sentence has them."""

    def __missing__(self, name: str) -> str:
        row = self["rows"][int(name[-1]) if name[-1].isdigit() else 0]
        word = name.rstrip("12")
        return ms(row) if word == "ms" else what(row, mode=word == "what")


def ms(measurement: Measurement) -> str:
    """Return a latency as printed, or with four digits, and its unit."""
    return f"{measurement.value:.4g} ms" if measurement.printed is None else f"{measurement.value:g} ms"


def what(measurement: Measurement, *, mode: bool = True) -> str:
    """Return a row in a few words: implementation, mode, and the shape as far as it is said."""
    shape = (level_of(measurement.case).words(measurement.case), measurement.timing)
    words = ", ".join(word for word in shape if word)
    return " ".join(word for word in (measurement.implementation, measurement.mode if mode else None) if word) + (
        f" ({words})" if words else ""
    )
