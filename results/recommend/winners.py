"""Winners: the fastest correct implementation of a case or a cell, and the implementations that tie with it.

All implementations of a case come from one run. A rival ties if the 90 % interval of the ratio overlaps the band of
2 %. Beyond the band it is behind, and certainly so only if the verdict on it (results.compare.verdicts) is SLOWER. A
tie whose interval includes a difference of 10 % decides nothing. A source that prints one number has no spread, so
there a rival ties only if its number is within the band. TF32 and FP8 variants cannot win: their precision is not the
dtype of the column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any

import pandas as pd

from results.compare.verdicts import BAND, Judgement, Verdict, judge, sampled_in_rounds
from results.derive import geometric_mean
from results.implementations import Declared, facts_of
from results.levels import Level, level_of
from results.query.declared import declared
from results.query.pages import gpus, options, to_its_runs
from results.query.speedups import cell_columns
from results.recommend.doubt import doubts
from results.records import CASE_FIELDS, MODES, Case, Measurement, Status
from results.slice import BASELINES, MASK, Filters, cells, level_in
from results.store.database import Store
from results.store.ingest import COLUMNS as STORED

JUDGED_WITHIN = 1.5  # on a GPU, a rival this many times slower loses without a test
UNDECIDED = 0.10  # a tie whose interval includes this difference decides nothing
FIELDS = tuple(name for name in STORED if name not in ("measurement_id", "time", "samples"))
_FACTS = ("speedup", "source", "protocol", "mask", "shape")


@dataclass(frozen=True)
class Contender:
    """One implementation in a case."""

    measurement: Measurement
    speedup: float | None  # over the baseline, in the same run
    source: str
    protocol: str | None
    mask: str
    shape: str
    precision: str | None = None  # precision of the products if it is not the case's dtype


class Standing(StrEnum):
    """The certainty that the fastest implementation of a shape is the fastest."""

    AHEAD = "ahead"
    NOT_CERTAIN = "ahead, not certain"
    TIE = "equally fast within 2 %"
    CANNOT_DECIDE = "cannot be told apart"


@dataclass(frozen=True)
class Rival:
    """An implementation compared with the winner. The ratio is its time over the winner's."""

    name: str
    ratio: float
    low: float | None  # 90 % interval of the ratio: each end with 95 % certainty
    high: float | None
    ties: bool
    certain: bool = True  # the result is certain

    @property
    def standing(self) -> Standing:
        """Return the certainty that the winner is ahead of this implementation."""
        if not self.ties:
            return Standing.AHEAD if self.certain else Standing.NOT_CERTAIN
        if self.low is None:
            return Standing.TIE
        wide = max(self.high, 1 / self.low) > 1 + UNDECIDED
        return Standing.CANNOT_DECIDE if wide else Standing.TIE


@dataclass(frozen=True)
class ContestResult:
    """The result of a case or a cell."""

    winner: str | None  # None: no implementation has a number
    latency_ms: float | None
    spread: tuple[float | None, float | None]  # p20 and p80 of the winner
    n: int | None  # samples of the winner, the fewest of the cases
    speedup: float | None  # winner over the baseline
    rivals: tuple[Rival, ...]  # implementations with numbers in as many cases, fastest first
    failed: tuple[tuple[str, str], ...]  # name and status
    status: str | None  # most frequent status of the failed
    cases: int

    @property
    def ties(self) -> tuple[str, ...]:
        """Return the rivals that tie with the winner."""
        return tuple(rival.name for rival in self.rivals if rival.ties)

    @property
    def standing(self) -> Standing:
        """Return the lowest certainty over the rivals."""
        found = {rival.standing for rival in self.rivals}
        return next((each for each in reversed(Standing) if each in found), Standing.AHEAD)


Contest = Mapping[str, Contender]  # the contenders of one case, by implementation


def contests(store: Store, filters: Filters) -> list[Contest]:
    """Return every case of the slice with all its implementations, in every mode if the slice names none."""
    modes = [filters.mode] if filters.mode else MODES
    return [contest for mode in modes for contest in _contests(store, replace(filters, mode=mode))]


def decide(cases: Sequence[Contest]) -> ContestResult:
    """Decide the winner of a case, or of several cases by the geometric means of their times."""
    names = sorted({name for contest in cases for name in contest})
    found = {name: [contest.get(name) for contest in cases] for name in names}
    numbers = {name: sum(map(has_number, found[name])) for name in names}
    eligible = [name for name in names if numbers[name] and _in_dtype(found[name])]
    eligible = [name for name in eligible if numbers[name] == max(numbers[other] for other in eligible)]
    failed = tuple((name, status) for name in names if not numbers[name] and (status := _status(found[name])))
    statuses = [status for _, status in failed]
    most_frequent = max(sorted(statuses), key=statuses.count) if statuses else None
    if not eligible:
        return ContestResult(None, None, (None, None), None, None, (), failed, most_frequent, len(cases))
    times = {name: geometric_mean(c.measurement.value for c in found[name] if has_number(c)) for name in eligible}
    first, *others = sorted(eligible, key=lambda name: (times[name], name))
    rivals = tuple(_rival(found[first], found[name], times[name] / times[first], name) for name in others)
    best = [contender for contender in found[first] if has_number(contender)]
    spread = tuple(_mean([getattr(c.measurement, end) for c in best]) for end in ("p20", "p80"))
    counts = [c.measurement.n for c in best]
    fewest = None if None in counts else min(counts)
    speedup = geometric_mean(c.speedup for c in best if c.speedup)
    return ContestResult(first, times[first], spread, fewest, speedup, rivals, failed, most_frequent, len(cases))


def winners(store: Store, filters: Filters) -> pd.DataFrame:
    """Return for every cell (its dtype and place on the axes of the level) the winner, the ties and the failures.

    `status` is missing if nothing has a number and not every implementation has been tried yet.
    """
    by_cell: dict[tuple, list[Contest]] = {}
    level, columns = level_in(filters), cell_columns(filters)
    found = contests(store, filters)
    void = doubts(store, (contender.measurement for contest in found for contender in contest.values()))
    for contest in found:
        if (cell := place_in(_first(contest).measurement.case, level)) is not None:
            by_cell.setdefault(cell, []).append(contest)
    tried = {cell: len({name for contest in cases for name in contest}) for cell, cases in by_cell.items()}
    most_tried: dict[str | None, int] = {}
    for cell, number in tried.items():
        most_tried[cell[0]] = max(number, most_tried.get(cell[0], 0))
    rows = [
        dict(zip(columns, cell, strict=True))
        | _row(result := decide(cases), tried[cell] == most_tried[cell[0]])
        | {"void": _void(cases, result.winner, void)}
        for cell, cases in sorted(by_cell.items(), key=lambda item: [(part is None, part) for part in item[0]])
    ]
    return pd.DataFrame(rows, columns=[*columns, *WINNER_COLUMNS]).astype(
        dict.fromkeys(("latency_ms", "p20", "p80", "speedup", "margin"), float) | {"n": "Int64"}
    )


WINNER_COLUMNS = (
    "winner", "latency_ms", "p20", "p80", "n", "speedup", "next", "margin", "tied", "rivals", "failed",
    "status", "contenders", "cases", "standing", "others", "void",
)  # fmt: skip


def winners_by_gpu(store: Store, filters: Filters, timings: Sequence[str]) -> pd.DataFrame:
    """Return the winners of every GPU that has the slice's workload, mask and mode.

    Each GPU has the first of the timings and the first of the baselines that it has numbers for.
    """
    tables = []
    for gpu in gpus(store)["gpu"]:
        scope = {"gpu": gpu, "workload": filters.workload, "mask": filters.mask}
        there = options(store, "timing", **scope)
        found = [timing for timing in timings if timing in set(there.loc[there["numbers"] > 0, "choice"])]
        names = set(options(store, "implementation", **scope)["choice"])
        baseline = next((name for name in (filters.baseline, *BASELINES) if name in names), filters.baseline)
        whole = replace(filters, gpu=gpu, baseline=baseline, shape=None, source=(), run=())
        slices = (replace(whole, timing=timing) for timing in found)
        of_gpu = next((table for one in slices if len(table := winners(store, one))), None)
        if of_gpu is not None:
            tables.append(of_gpu.assign(gpu=gpu))
    return (
        pd.concat(tables, ignore_index=True)
        if tables
        else pd.DataFrame(columns=[*cell_columns(filters), *WINNER_COLUMNS, "gpu"])
    )


def _contests(store: Store, filters: Filters) -> Iterator[Contest]:
    narrow = to_its_runs(store, filters)
    if narrow is None:
        return
    ctes, params = cells(narrow)
    names = (*FIELDS, "samples", *_FACTS)
    stored = ", ".join(FIELDS)
    rows = store.rows(
        f"""{ctes}
        SELECT {stored}, CASE WHEN latency_ms <= {JUDGED_WITHIN} * fastest OR device_type = 'cpu'
                                  THEN samples END AS samples,
               speedup, source, protocol, mask, shape
        FROM (SELECT paired.*, {MASK} AS mask, runs.protocol,
                     min(latency_ms) OVER (PARTITION BY {", ".join(CASE_FIELDS)}) AS fastest
              FROM paired JOIN runs USING (run_id))
        ORDER BY {", ".join(CASE_FIELDS)}, implementation""",
        params,
    )
    contest: dict[str, Contender] = {}
    said = declared(store, level_in(filters).name)
    for row in rows:
        contender = _contender(dict(zip(names, row, strict=True)), said)
        if contest and _first(contest).measurement.case != contender.measurement.case:
            yield contest
            contest = {}
        contest[contender.measurement.implementation] = contender
    if contest:
        yield contest


def _first(contest: Contest) -> Contender:
    return next(iter(contest.values()))


def _contender(row: dict[str, Any], said: Declared) -> Contender:
    of_run = {name: row.pop(name) for name in _FACTS}
    return Contender(measurement_of(row), **of_run, precision=facts_of(row["implementation"], said).precision)


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """Return the measurement of a stored row."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    case = Case(**{name: fields.pop(name) for name in CASE_FIELDS})
    fields |= {name: fields[name] or () for name in ("samples", "flags")}
    return Measurement(case=case, **fields)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; None if a value is missing."""
    return geometric_mean(values) if all(values) else None


def place_in(case: Case, level: Level) -> tuple | None:
    """Return the place of a case on the map of a level; None if its level has another map."""
    if level_of(case).rows != level.rows:
        return None
    return case.dtype, getattr(case, level.columns.field), getattr(case, level.rows.field)


def _in_dtype(contenders: Iterable[Contender | None]) -> bool:
    """Return whether an implementation computes in the dtype of its column."""
    return all(contender is None or contender.precision is None for contender in contenders)


def has_number(contender: Contender | None) -> bool:
    """Return whether a contender ran and has a time."""
    return contender is not None and contender.measurement.status is Status.OK and bool(contender.measurement.value)


def _void(cases: Sequence[Contest], winner: str | None, void: Mapping[str, str]) -> str | None:
    """Return the reason why one of the winner's times is impossible."""
    times = (contest[winner].measurement for contest in cases if winner in contest)
    return next((void[time.measurement_id] for time in times if time.measurement_id in void), None)


def _status(contenders: Iterable[Contender | None]) -> str | None:
    return next((str(contender.measurement.status) for contender in contenders if contender), None)


def _rival(winner: Sequence[Contender | None], other: Sequence[Contender | None], ratio: float, name: str) -> Rival:
    """Judge a rival. Several cases are judged by the mean of their intervals, as if all had the same error."""
    if ratio > JUDGED_WITHIN and not any(contender and contender.measurement.samples for contender in other):
        return Rival(name, ratio, None, None, ties=False)
    pairs = [(a, b) for a, b in zip(winner, other, strict=True) if has_number(a) and has_number(b)]
    found = [_judged(a, b) for a, b in pairs]
    low, high = mean_range(found)
    if low is None or high is None:
        return Rival(name, ratio, None, None, ties=ratio <= 1 + BAND)
    ties = high >= 1 / (1 + BAND)
    certain = ties or all(judgement.verdict is Verdict.SLOWER for judgement in found)
    return Rival(name, ratio, 1 / high, 1 / low, ties=ties, certain=certain)


def mean_range(found: Sequence[Judgement]) -> tuple[float | None, float | None]:
    """Return the geometric mean of the ends of some intervals; None if there is none or one has no spread."""
    if not found or any(judgement.low is None for judgement in found):
        return None, None
    low, high = (math.exp(fmean(math.log(getattr(each, end)) for each in found)) for end in ("low", "high"))
    return low, high


def _judged(winner: Contender, other: Contender) -> Judgement:
    """Return the verdict on the other implementation against the winner."""
    protocol = winner.protocol if winner.protocol == other.protocol else None
    return judge(winner.measurement, other.measurement, protocol=protocol, paired=sampled_in_rounds(protocol))


def _row(result: ContestResult, all_tried: bool) -> dict[str, Any]:
    known = result.winner or all_tried
    return {
        "winner": result.winner,
        "latency_ms": result.latency_ms,
        "p20": result.spread[0],
        "p80": result.spread[1],
        "n": result.n,
        "speedup": result.speedup,
        "next": result.rivals[0].name if result.rivals else None,  # the fastest of the others
        "margin": result.rivals[0].ratio if result.rivals else None,  # its time over the winner's
        "tied": [result.winner, *result.ties] if result.winner else [],
        "rivals": [rival_words(rival) for rival in result.rivals],
        "failed": [f"{name} {status}" for name, status in result.failed],
        "status": result.status if known else None,
        "contenders": len(result.rivals) + 1 if result.winner else 0,
        "cases": result.cases,
        "standing": str(result.standing) if result.winner else None,
        "others": [_as_row(rival) for rival in result.rivals],
    }


def _as_row(rival: Rival) -> dict[str, Any]:
    return {
        "implementation": rival.name,
        "ratio": rival.ratio,
        "ratio_low": rival.low,
        "ratio_high": rival.high,
        "standing": str(rival.standing),
    }


def rival_words(rival: Rival) -> str:
    """Return a rival in a few words: triton_fa2 takes 1.01× as long (90 % interval 0.99 to 1.03): equally fast..."""
    span = "" if rival.low is None else f" (90 % interval {rival.low:.2f} to {rival.high:.2f})"
    end = "" if rival.standing is Standing.AHEAD else f": {rival.standing}"
    end = ": behind, not certain" if rival.standing is Standing.NOT_CERTAIN else end
    return f"{rival.name} takes {rival.ratio:.2f}× as long{span}{end}"
