"""What attention costs in a step of a recorded program on a card: now, by the rule and at best.

Each call has the times of the measured shape that decides it in a rule, scaled by the FLOPs. A card without such a
shape has those of its nearest relatives, scaled by the data sheets.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from results import levels
from results.implementations import facts_of
from results.recommend import cards, nearest
from results.recommend.contest import Contest, ContestResult, decide, has_number
from results.recommend.rule_file import certainly_slower
from results.recommend.usage import ROOT
from results.recommend.winners import contests, with_doubts
from results.records import Case, Measurement
from results.slice import Filters
from results.store.database import Store

NOW = "torch_sdpa_auto"  # SDPA with the backend that PyTorch chooses
Asked = tuple[Case, str, str, float]  # case, mode, timing, and how often a step calls it
_ELSEWHERE = 3.0  # what another timing and another GPU count: as far as a rule reaches (kernels.problem.REACH)
_MOST_RELATIVES = 2
_EMPTY_MS = 0.003  # least time of a scaled call: an empty kernel between two events on an H200
_FEW_QUERIES = 16


@dataclass(frozen=True)
class CallTimes:
    """The times in ms of all calls of one problem in a step, and the measured shape behind them."""

    now_ms: float
    ruled_ms: float
    best_ms: float
    ruled: str  # the implementation that a rule leaves in place or names
    best: str
    standing: str  # certainty of the best
    gpu: str
    relative: bool  # whether it is another GPU than the card
    timing: str
    measured: Case
    factor: float  # time of the call over that of the measured shape on its GPU
    exact: bool  # whether the measured shape is that of the call
    source: str


@dataclass(frozen=True)
class _Point:
    """A measured shape. `rank` is 0 for the card itself, 1 for its nearest relative; `compute` scales its times."""

    contest: Contest
    gpu: str
    rank: int
    timing: str
    compute: float

    @property
    def case(self) -> Case:
        return self.contest[NOW].measurement.case


@dataclass(frozen=True)
class Tiles:
    """The file in kernels/tuned whose tiles a card takes before it is tuned."""

    family: str
    own: bool  # the file names this compute capability
    basis: str  # how the tiles were found


def times(store: Store, card: str, asked: tuple[Asked, ...]) -> list[CallTimes | None]:
    """Return the times of each call on a row of the GPU table; None where nothing comparable was measured."""
    own = [gpu for gpu, _, _ in cards.devices(store, card)]
    near = [each for each in cards.relatives(store, card) if each.gpu not in own][:_MOST_RELATIVES]
    places: list[tuple[str, int, float, tuple[str, ...] | None]] = [(gpu, 0, 1.0, None) for gpu in own]
    places += [(each.gpu, rank, each.compute, each.able) for rank, each in enumerate(near, start=1)]
    points: dict[tuple, list[_Point]] = {}
    for mode, dtype in sorted({(mode, str(case.dtype)) for case, mode, _, _ in asked}):
        for timing in ("kernel", "eager"):
            wanted = Filters(level="op", mode=mode, timing=timing, dtype=(dtype,), baseline=NOW)
            for gpu, rank, compute, able in places:
                for contest in _contests(store, replace(wanted, gpu=gpu), able):
                    point = _Point(contest, gpu, rank, timing, compute)
                    points.setdefault((mode, *_class_of(point.case)), []).append(point)
    return [_nearest(points.get((each[1], *_class_of(each[0])), []), each) for each in asked]


def tiles(store: Store, card: str, case: Case, mode: str, timing: str) -> list[Measurement]:
    """Return the times of our kernels for a call on a card, as they are and by form; none if no form was timed."""
    with_forms = {gpu for (gpu,) in store.kept("SELECT DISTINCT gpu FROM choices WHERE choice LIKE '%[%]'")}
    for gpu in [gpu for gpu, _, _ in cards.devices(store, card) if gpu in with_forms]:
        wanted = Filters(level="op", mode=mode, timing=timing, dtype=(str(case.dtype),), baseline=NOW, gpu=gpu)
        for contest in contests(store, wanted):
            measured = next(iter(contest.values())).measurement.case
            bases = {name.partition("[")[0] for name in contest if "[" in name}
            if bases and _class_of(measured) == _class_of(case) and not distance_of(case, measured):
                return [each.measurement for name, each in contest.items() if name.partition("[")[0] in bases]
    return []


def distance_of(case: Case, measured: Case) -> float:
    """Return how far a measured case is from another of its class, as a rule counts it."""
    return nearest.distance(_sizes(case), _sizes(measured))


def tiles_of(card: str) -> Tiles | None:
    """Return whose tiles `kernels.tables` takes for a card of the GPU table; None for AMD and unknown names."""
    sheet = cards.chip_of(card)
    files = {path.stem: json.loads(path.read_text()) for path in (ROOT / "kernels" / "tuned").glob("sm_*.json")}
    if sheet is None or sheet.compute_capability.startswith("gfx") or not files:
        return None
    capability = int(sheet.compute_capability.replace(".", ""))
    fitting = [
        (size, -abs(capability - int(chip)), name)
        for name, file in files.items()
        for chip, size in file["chips"].items()
        if size <= sheet.shared_kb << 10 and int(chip) <= capability
    ]
    name = family = max(fitting, default=(0, 0, "sm_86"))[2]
    while "triton_fa2 half" not in files[family]["tables"]:
        family = files[family]["like"]
    basis = files[family]["tables"]["triton_fa2 half"]["source"].partition(". ")[0]
    return Tiles(name, str(capability) in files[name]["chips"], basis.rstrip("."))


def _contests(store: Store, filters: Filters, able: tuple[str, ...] | None) -> Iterator[Contest]:
    """Yield the contests with SDPA among them, without times that cannot be and what the card cannot run."""
    found, void = with_doubts(store, filters)
    for contest in found:
        sound = {name: each for name, each in contest.items() if each.measurement.measurement_id not in void}
        sound = {name: each for name, each in sound.items() if able is None or name in able}
        if has_number(sound.get(NOW)):
            case = sound[NOW].measurement.case
            if case.head_dim and case.seqlen_q:
                yield sound


def _nearest(points: list[_Point], asked: Asked) -> CallTimes | None:
    case, mode, timing, count = asked
    ranked = [
        (distance_of(case, each.case) + _ELSEWHERE * ((each.timing != timing) + each.rank), at)
        for at, each in enumerate(points)
    ]
    if not ranked:
        return None
    point = points[min(ranked)[1]]
    result, now = decide([point.contest]), point.contest[NOW]
    ruled, ratio = _ruled(result)
    whole = [replace(each, window_size=0) for each in (case, point.case)]  # SDPA takes a window as a mask
    factor, of_sdpa = (
        point.compute * _work(one, mode) / _work(other, mode) for one, other in ((case, point.case), whole)
    )

    def in_step(name: str, ms: float | None) -> float:
        scaled = (of_sdpa if name.startswith("torch_sdpa") else factor) * (ms or 0)
        return count * max(scaled, min(_EMPTY_MS, ms or 0))

    best, best_ms = str(result.winner), result.latency_ms or 0
    return CallTimes(
        now_ms=in_step(NOW, now.measurement.value),
        ruled_ms=in_step(ruled, ratio * best_ms),
        best_ms=in_step(best, best_ms),
        ruled=ruled,
        best=best,
        standing=str(result.standing),
        gpu=point.gpu,
        relative=point.rank > 0,
        timing=point.timing,
        measured=point.case,
        factor=factor,
        exact=not distance_of(case, point.case),
        source=now.source,
    )


def _work(case: Case, mode: str) -> float:
    return levels.flops(case, mode) or 1.0


def _ruled(result: ContestResult) -> tuple[str, float]:
    """Return the slowest of our kernels that a rule leaves in place with its time over the best; else the winner."""
    ratios = {str(result.winner): 1.0} | {each.name: each.ratio for each in result.rivals if not certainly_slower(each)}
    own = {
        name: ratio for name, ratio in ratios.items() if facts_of(name).family == "own" and not facts_of(name).reduced
    }
    return max(own.items(), key=lambda item: item[1], default=(str(result.winner), 1.0))


def _sizes(case: Case) -> dict[str, Any]:
    heads = case.batch, case.num_heads, case.num_kv_heads
    lengths = case.seqlen_q, case.seqlen_k or case.seqlen_q, case.head_dim
    return nearest.sizes_of(*heads, *lengths, case.head_dim_v, case.window_size, case.causal)


def _class_of(case: Case) -> tuple:
    """Return what never differs between a call and the measured shape that stands for it, as in a rule."""
    return case.dtype, bool(case.window_size), (case.seqlen_q or 0) <= _FEW_QUERIES, case.asked
