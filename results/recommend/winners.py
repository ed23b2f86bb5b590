"""Who wins a case or a cell: the fastest correct implementation, and those that tie with it.

All implementations of a case come from one run. A rival ties where the 90 % interval of the ratio reaches into the band
of 2 %; beyond it, it is behind, but not certainly so unless the verdict on it (results.compare.verdicts) is SLOWER. A
tie whose interval also holds differences of 10 % decides nothing. A source that prints one number has no spread to
judge by, and there only a difference within the band is a tie. TF32 and FP8 variants take no part: they are another
precision than the dtype of their column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
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

JUDGED_WITHIN = 1.5  # on a GPU a rival this many times slower has lost without a look at its samples
UNDECIDED = 0.10  # an interval that holds such a difference, and none, decides nothing: five times the band
NO_SPREAD = "no spread"
FIELDS = tuple(name for name in STORED if name not in ("measurement_id", "time", "samples"))  # beside the samples
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
    precision: str | None = None  # what it rounds factors to, where that is not the case's dtype


class Standing(StrEnum):
    """How sure it is that the fastest of a shape is the fastest."""

    AHEAD = "ahead"
    NOT_CERTAIN = "ahead, not certain"
    TIE = "equally fast within 2 %"
    CANNOT_DECIDE = "cannot be told apart"


@dataclass(frozen=True)
class Rival:
    """What can be said of an implementation beside the winner: above 1 the winner is as many times faster."""

    name: str
    ratio: float
    low: float | None  # 90 % interval of the ratio: each end with 95 % certainty
    high: float | None
    ties: bool
    basis: str
    certain: bool = True  # that it is behind, or that it ties

    @property
    def standing(self) -> Standing:
        """Return how sure it is that the winner is ahead of this one."""
        if not self.ties:
            return Standing.AHEAD if self.certain else Standing.NOT_CERTAIN
        if self.low is None:
            return Standing.TIE
        wide = max(self.high, 1 / self.low) > 1 + UNDECIDED
        return Standing.CANNOT_DECIDE if wide else Standing.TIE


@dataclass(frozen=True)
class ContestResult:
    """How a case or a cell ended."""

    winner: str | None  # None: nothing there has a speed
    latency_ms: float | None
    spread: tuple[float | None, float | None]  # p20 and p80 of the winner
    n: int | None  # samples of the winner, the fewest of the cases
    speedup: float | None  # of the winner over the baseline
    rivals: tuple[Rival, ...]  # those with a number in as many cases, fastest first
    failed: tuple[tuple[str, str], ...]  # name and status
    status: str | None  # what most of the failed say
    cases: int

    @property
    def ties(self) -> tuple[str, ...]:
        """Return the rivals that cannot be told from the winner."""
        return tuple(rival.name for rival in self.rivals if rival.ties)

    @property
    def standing(self) -> Standing:
        """Return the least sure of what can be said against the rivals: a doubt about one is a doubt about the win."""
        found = {rival.standing for rival in self.rivals}
        return next((each for each in reversed(Standing) if each in found), Standing.AHEAD)

    @property
    def by_spread(self) -> bool:
        """Return whether every rival has a spread; one without is taken by its number alone."""
        return all(rival.basis != NO_SPREAD for rival in self.rivals)


Contest = Mapping[str, Contender]  # by implementation, of one case


def contests(store: Store, filters: Filters) -> list[Contest]:
    """Return every case of the slice with all its implementations; of every mode where the slice names none."""
    modes = [filters.mode] if filters.mode else MODES
    return [contest for mode in modes for contest in _contests(store, replace(filters, mode=mode))]


def decide(cases: Sequence[Contest]) -> ContestResult:
    """Decide who wins a case, or several cases together by the geometric mean of their times."""
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
    """Return the winner of every cell (its dtype and place on the axes of the level), who ties with it, what failed.

    `status` is missing where nothing has a number and not every implementation has been tried yet.
    """
    by_cell: dict[tuple, list[Contest]] = {}
    level, columns = level_in(filters), cell_columns(filters)
    found = contests(store, filters)
    void = doubts(store, (contender.measurement for contest in found for contender in contest.values()))
    for contest in found:
        if (cell := place_of(contest, level)) is not None:
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
    *("winner", "latency_ms", "p20", "p80", "n", "speedup", "next", "margin", "tied", "rivals", "failed"),
    *("status", "contenders", "cases", "by_spread", "standing", "others", "void"),
)


def winners_by_gpu(store: Store, filters: Filters, timings: Sequence[str]) -> pd.DataFrame:
    """Return the winners of every GPU that has the slice's workload, mask and mode.

    Each GPU is shown in the first timing, and over the first baseline, that it has.
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
        if contest and next(iter(contest.values())).measurement.case != contender.measurement.case:
            yield contest
            contest = {}
        contest[contender.measurement.implementation] = contender
    if contest:
        yield contest


def _contender(row: dict[str, Any], said: Declared) -> Contender:
    of_run = {name: row.pop(name) for name in _FACTS}
    return Contender(measurement_of(row), **of_run, precision=facts_of(row["implementation"], said).precision)


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """Return the measurement that a stored row is, without its id and time where those were not asked for."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    case = Case(**{name: fields.pop(name) for name in CASE_FIELDS})
    fields |= {name: fields[name] or () for name in ("samples", "flags")}
    return Measurement(case=case, **fields)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean, if every value is said."""
    return geometric_mean(values) if all(values) else None


def place_of(contest: Contest, level: Level) -> tuple | None:
    """Return where a contest stands on the map of a level; None if it is of a level with another map."""
    return place_in(next(iter(contest.values())).measurement.case, level)


def place_in(case: Case, level: Level) -> tuple | None:
    """Return where a case stands on the map of a level; None if it is of a level with another map."""
    if level_of(case).rows != level.rows:
        return None
    return case.dtype, getattr(case, level.columns.field), getattr(case, level.rows.field)


def _in_dtype(contenders: Iterable[Contender | None]) -> bool:
    """Return whether an implementation computes in the dtype of its column."""
    return all(contender is None or contender.precision is None for contender in contenders)


def has_number(contender: Contender | None) -> bool:
    """Tell whether a contender ran and has a time."""
    return contender is not None and contender.measurement.status is Status.OK and bool(contender.measurement.value)


def _void(cases: Sequence[Contest], winner: str | None, void: Mapping[str, str]) -> str | None:
    """Return why a time that the winner won by cannot be what it says."""
    times = (contest[winner].measurement for contest in cases if winner in contest)
    return next((void[time.measurement_id] for time in times if time.measurement_id in void), None)


def _status(contenders: Iterable[Contender | None]) -> str | None:
    return next((str(contender.measurement.status) for contender in contenders if contender), None)


def _rival(winner: Sequence[Contender | None], other: Sequence[Contender | None], ratio: float, name: str) -> Rival:
    """Judge a rival; over several cases by the mean of the intervals' ends, as wide as if all erred the same way."""
    if ratio > JUDGED_WITHIN and not any(contender and contender.measurement.samples for contender in other):
        return Rival(name, ratio, None, None, ties=False, basis="far behind")
    pairs = [(a, b) for a, b in zip(winner, other, strict=True) if has_number(a) and has_number(b)]
    found = [_judged(a, b) for a, b in pairs]
    if not found or any(judgement.low is None for judgement in found):
        return Rival(name, ratio, None, None, ties=ratio <= 1 + BAND, basis=NO_SPREAD)
    low, high = (math.exp(sum(math.log(getattr(j, end)) for j in found) / len(found)) for end in ("low", "high"))
    ties = high >= 1 / (1 + BAND)
    certain = ties or all(judgement.verdict is Verdict.SLOWER for judgement in found)
    return Rival(name, ratio, 1 / high, 1 / low, ties=ties, basis=found[0].basis, certain=certain)


def _judged(winner: Contender, other: Contender) -> Judgement:
    """Return the verdict on the other against the winner: SLOWER, or it is a tie."""
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
        "by_spread": result.by_spread,
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
