"""Who wins a case or a cell: the fastest correct implementation, and those that no verdict tells from it.

All implementations of a case come from one run. A rival ties unless the verdict on it (results.compare.verdicts) is
SLOWER; a source that prints one number has no spread to judge by, and there only a difference within the band of 2 % is
a tie. TF32 and FP8 variants take no part: they are another precision than the dtype of their column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from results.compare.verdicts import BAND, Judgement, Verdict, judge, sampled_in_rounds
from results.derive import geometric_mean
from results.precision import is_other
from results.query.pages import gpus, options, to_its_runs
from results.records import CASE_FIELDS, MODES, Case, Measurement, Status
from results.slice import BASELINES, MASK, Filters, cells
from results.store.database import Store
from results.store.ingest import COLUMNS as STORED

JUDGED_WITHIN = 1.5  # a rival this many times slower has lost without a look at its samples
NO_SPREAD = "no spread"
_FIELDS = tuple(name for name in STORED if name not in ("measurement_id", "time", "samples"))
_OF_RUN = ("speedup", "source", "protocol", "mask", "shape")


@dataclass(frozen=True)
class Entry:
    """One implementation in a case."""

    measurement: Measurement
    speedup: float | None  # over the baseline, in the same run
    source: str
    protocol: str | None
    mask: str
    shape: str


@dataclass(frozen=True)
class Rival:
    """What can be said of an implementation beside the winner: above 1 the winner is as many times faster."""

    name: str
    ratio: float
    low: float | None  # 90 % interval of the ratio: each end with 95 % certainty
    high: float | None
    ties: bool
    basis: str


@dataclass(frozen=True)
class Outcome:
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
        """Who cannot be told from the winner."""
        return tuple(rival.name for rival in self.rivals if rival.ties)

    @property
    def by_spread(self) -> bool:
        """Whether no rival had to be taken by its number alone, for want of a spread."""
        return all(rival.basis != NO_SPREAD for rival in self.rivals)


Race = Mapping[str, Entry]  # by implementation, of one case


def races(store: Store, filters: Filters) -> list[Race]:
    """Every case of the slice with all its implementations; of every mode where the slice names none."""
    modes = [filters.mode] if filters.mode else MODES
    return [race for mode in modes for race in _races(store, replace(filters, mode=mode))]


def decide(field: Sequence[Race]) -> Outcome:
    """Who wins a case (a field of one), or several cases together by geometric mean."""
    names = sorted({name for race in field for name in race})
    entries = {name: [race.get(name) for race in field] for name in names}
    done = {name: sum(_has_number(entry) for entry in found) for name, found in entries.items()}
    racing = [name for name in names if done[name] and not is_other(name)]
    racing = [name for name in racing if done[name] == max(done[other] for other in racing)]
    failed = tuple((name, status) for name in names if not done[name] and (status := _status(entries[name])))
    statuses = [status for _, status in failed]
    often = max(sorted(statuses), key=statuses.count) if statuses else None
    if not racing:
        return Outcome(None, None, (None, None), None, None, (), failed, often, len(field))
    times = {name: geometric_mean(e.measurement.value for e in entries[name] if _has_number(e)) for name in racing}
    order = sorted(racing, key=lambda name: (times[name], name))
    first = order[0]
    rivals = tuple(_rival(entries[first], entries[name], times[name] / times[first], name) for name in order[1:])
    best = [entry.measurement for entry in entries[first] if _has_number(entry)]
    spread = tuple(_mean([getattr(m, end) for m in best]) for end in ("p20", "p80"))
    counts = [m.n for m in best]
    speedup = geometric_mean(entry.speedup for entry in entries[first] if _has_number(entry) and entry.speedup)
    fewest = None if None in counts else min(counts)
    return Outcome(first, times[first], spread, fewest, speedup, rivals, failed, often, len(field))


def winners(store: Store, filters: Filters) -> pd.DataFrame:
    """Of every cell (dtype, seqlen, head_dim) the winner, those it ties with, and what failed.

    `status` is missing where nothing has a number and not every implementation has been tried yet.
    """
    fields: dict[tuple, list[Race]] = {}
    for race in races(store, filters):
        fields.setdefault(_place(race), []).append(race)
    tried = {place: len({name for race in field for name in race}) for place, field in fields.items()}
    planned: dict[str | None, int] = {}
    for place, number in tried.items():
        planned[place[0]] = max(number, planned.get(place[0], 0))
    rows = [_row(place, decide(field), tried[place] == planned[place[0]]) for place, field in fields.items()]
    rows.sort(key=lambda row: tuple((row[name] is None, row[name]) for name in ("dtype", "seqlen", "head_dim")))
    return pd.DataFrame(rows, columns=[*WINNER_COLUMNS]).astype(
        dict.fromkeys(("latency_ms", "p20", "p80", "speedup"), float) | {"n": "Int64"}
    )


WINNER_COLUMNS = (
    *("dtype", "seqlen", "head_dim", "winner", "latency_ms", "p20", "p80", "n", "speedup", "tied", "rivals", "failed"),
    *("status", "contenders", "cases", "by_spread"),
)


def winners_by_gpu(store: Store, filters: Filters, timings: Sequence[str]) -> pd.DataFrame:
    """The winners of every GPU that has the slice's workload, mask and mode, in the first timing and over the first
    baseline that it has.
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
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*WINNER_COLUMNS, "gpu"])


def _races(store: Store, filters: Filters) -> Iterator[Race]:
    narrow = to_its_runs(store, filters)
    if narrow is None:
        return
    ctes, params = cells(narrow)
    names = (*_FIELDS, "samples", *_OF_RUN)
    stored = ", ".join(_FIELDS)
    rows = store.rows(
        f"""{ctes}
        SELECT {stored}, CASE WHEN latency_ms <= {JUDGED_WITHIN} * fastest THEN samples END AS samples,
               speedup, source, protocol, mask, shape
        FROM (SELECT paired.*, {MASK} AS mask, runs.protocol,
                     min(latency_ms) OVER (PARTITION BY {", ".join(CASE_FIELDS)}) AS fastest
              FROM paired JOIN runs USING (run_id))
        ORDER BY {", ".join(CASE_FIELDS)}, implementation""",
        params,
    )
    race: dict[str, Entry] = {}
    for row in rows:
        entry = _entry(dict(zip(names, row, strict=True)))
        if race and next(iter(race.values())).measurement.case != entry.measurement.case:
            yield race
            race = {}
        race[entry.measurement.implementation] = entry
    if race:
        yield race


def _entry(row: dict[str, Any]) -> Entry:
    case = Case(**{name: row.pop(name) for name in CASE_FIELDS})
    of_run = {name: row.pop(name) for name in _OF_RUN}
    row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    row |= {name: row[name] or () for name in ("samples", "flags")}
    return Entry(Measurement(case=case, **row), **of_run)


def _mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean, if every value is said."""
    return geometric_mean(values) if all(values) else None


def _place(race: Race) -> tuple:
    case = next(iter(race.values())).measurement.case
    return case.dtype, case.seqlen_q, case.head_dim


def _has_number(entry: Entry | None) -> bool:
    return entry is not None and entry.measurement.status is Status.OK and bool(entry.measurement.value)


def _status(entries: Iterable[Entry | None]) -> str | None:
    return next((str(entry.measurement.status) for entry in entries if entry), None)


def _rival(winner: Sequence[Entry | None], other: Sequence[Entry | None], ratio: float, name: str) -> Rival:
    """Over several cases the mean of the intervals' ends: as wide as if all erred the same way."""
    if ratio > JUDGED_WITHIN:
        return Rival(name, ratio, None, None, ties=False, basis="far behind")
    pairs = [(a, b) for a, b in zip(winner, other, strict=True) if _has_number(a) and _has_number(b)]
    found = [_judged(a, b) for a, b in pairs]
    if not found or any(judgement.low is None for judgement in found):
        return Rival(name, ratio, None, None, ties=ratio <= 1 + BAND, basis=NO_SPREAD)
    low, high = (math.exp(sum(math.log(getattr(j, end)) for j in found) / len(found)) for end in ("low", "high"))
    ties = found[0].verdict is not Verdict.SLOWER if len(found) == 1 else high >= 1 / (1 + BAND)
    return Rival(name, ratio, 1 / high, 1 / low, ties=ties, basis=found[0].basis)


def _judged(winner: Entry, other: Entry) -> Judgement:
    """The verdict on the other against the winner: SLOWER, or it is a tie."""
    protocol = winner.protocol if winner.protocol == other.protocol else None
    return judge(winner.measurement, other.measurement, protocol=protocol, paired=sampled_in_rounds(protocol))


def _row(place: tuple, outcome: Outcome, all_tried: bool) -> dict[str, Any]:
    known = outcome.winner or all_tried
    return {
        **dict(zip(("dtype", "seqlen", "head_dim"), place, strict=True)),
        "winner": outcome.winner,
        "latency_ms": outcome.latency_ms,
        "p20": outcome.spread[0],
        "p80": outcome.spread[1],
        "n": outcome.n,
        "speedup": outcome.speedup,
        "tied": [outcome.winner, *outcome.ties] if outcome.winner else [],
        "rivals": [rival_words(rival) for rival in outcome.rivals],
        "failed": [f"{name} {status}" for name, status in outcome.failed],
        "status": outcome.status if known else None,
        "contenders": len(outcome.rivals) + 1 if outcome.winner else 0,
        "cases": outcome.cases,
        "by_spread": outcome.by_spread,
    }


def rival_words(rival: Rival) -> str:
    """A rival in a few words: triton_fa2 1.01x slower (0.99 to 1.03): no clear difference."""
    span = "" if rival.low is None else f" ({rival.low:.2f} to {rival.high:.2f})"
    return f"{rival.name} {rival.ratio:.2f}x as long{span}" + (": no clear difference" if rival.ties else "")
