"""Advice: for each use case the implementation that loses the least time over its shapes, and its figures.

If an implementation has no number for a shape, the baseline's time counts, as it would in use; if the baseline has no
number either, the slowest time counts. So an implementation gains nothing by skipping hard shapes.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from results.derive import geometric_mean
from results.paths import toml_of
from results.query import pages
from results.recommend.contest import Contest, decide
from results.recommend.rule import BACKENDS
from results.recommend.winners import contests
from results.slice import AS_PUBLISHED, Filters
from results.store.database import Store

NO_LIMIT = 1 << 30
ANY, MANY, FEW = (1, NO_LIMIT), (8, NO_LIMIT), (1, 7)  # batch times heads
_GIVEN = ("gpu", "baseline", "source", "run", "implementation")  # filters that apply to every use case
_HEADS = {ANY: "", MANY: "8 or more heads", FEW: "fewer than 8 heads"}
_TIMED = {"kernel": "device time", "eager": "host overhead included", AS_PUBLISHED: "times as published"}
_PASSES = {"fwd": "forward", "fwd_bwd": "forward and backward"}


def _tokens(number: int) -> str:
    return f"{number // 1024}k" if number >= 1024 else str(number)


@dataclass(frozen=True)
class UseCase:
    """A kind of work, with the shapes that represent it."""

    name: str
    mode: str
    timing: str = "kernel"
    mask: str = "causal"
    window: bool = False  # a window of any size; otherwise no window
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    shortest: int = 1
    longest: int = NO_LIMIT
    heads: tuple[int, int] = ANY  # range of batch times heads
    head_dim: int = 1  # smallest head_dim
    remark: str = ""

    @property
    def about(self) -> str:
        """Return the shapes in words."""
        mask = "causal with a sliding window of any size" if self.window else self.mask.replace("full", "full mask")
        parts = [
            _PASSES[self.mode],
            mask,
            f"from {_tokens(self.shortest)} tokens" if self.shortest > 1 else "",
            f"up to {_tokens(self.longest)} tokens" if self.longest < NO_LIMIT else "",
            _HEADS[self.heads],
            f"head_dim from {self.head_dim}" if self.head_dim > 1 else "",
            self.remark,
            _TIMED[self.timing],
        ]
        return ", ".join(filter(None, parts))

    def holds(self, contest: Contest) -> bool:
        """Return whether a case is one of its shapes."""
        case = next(iter(contest.values())).measurement.case
        heads = case.batch * case.num_heads if case.batch and case.num_heads else None
        fits = self.heads == ANY if heads is None else self.heads[0] <= heads <= self.heads[1]
        return (
            case.dtype in self.dtypes
            and self.shortest <= (case.seqlen_q or 0) <= self.longest
            and fits
            and (case.head_dim or 0) >= self.head_dim
        )


USE_CASES = tuple(UseCase(name, **said) for name, said in toml_of(__file__).items())


@dataclass(frozen=True)
class Advice:
    """The recommended implementation for a use case on one GPU."""

    use_case: str
    about: str
    implementation: str
    behind: float  # geometric mean of its time over the fastest's: 1.02 is 2 % slower on average
    worst: float
    wins: int
    ties: int
    covered: int  # cases in which it has a number
    cases: int
    speedup: float | None  # geometric mean over the baseline
    compared: int  # cases in which both have a number
    memory_reduction: float | None  # geometric mean over the baseline's peak memory
    backend: str | None  # the best of PyTorch's own backends
    backend_behind: float | None
    runs: tuple[str, ...]


def advise(store: Store, filters: Filters) -> list[Advice]:
    """Return the advice for each use case that has shapes on the GPU; `filters` gives all but
    the shapes: GPU, baseline, sources, runs and implementations.
    """
    found = []
    given: dict[str, Any] = {name: getattr(filters, name) for name in _GIVEN} | {"workload": "attention"}
    there = set(pages.options(store, "timing", gpu=str(filters.gpu), workload="attention")["choice"])
    masks = pages.options(store, "mask", gpu=str(filters.gpu), workload="attention")["choice"].tolist()
    for mode, kind, mask, window in dict.fromkeys(_scope(case) for case in USE_CASES):
        timing = kind if kind in there or kind != "kernel" else AS_PUBLISHED  # some sources do not state their timing
        names = [name for name in masks if name.startswith(f"{mask} window ")] if window else [mask]
        scopes = [Filters(**given, mask=name, mode=mode, timing=timing) for name in names]
        cases = [contest for scope in scopes for contest in contests(store, scope)]
        for case in USE_CASES:
            if _scope(case) == (mode, kind, mask, window):
                own = [contest for contest in cases if case.holds(contest)]
                timed = replace(case, timing=timing)
                found.append(_advice(timed, own, _reductions(store, scopes, case), filters.baseline))
    order = [case.name for case in USE_CASES]
    return sorted((advice for advice in found if advice), key=lambda advice: order.index(advice.use_case))


def _scope(case: UseCase) -> tuple[str, str, str, bool]:
    """Return the fields of a use case that select contests; use cases that share them share a query."""
    return case.mode, case.timing, case.mask, case.window


def _advice(
    case: UseCase, cases: Sequence[Contest], reductions: dict[str, float], baseline: str | None
) -> Advice | None:
    decided = [one for contest in cases if (one := decide([contest])).winner]
    if not decided:
        return None
    times = [{str(o.winner): 1.0, **{rival.name: rival.ratio for rival in o.rivals}} for o in decided]
    every = {name for ratios in times for name in ratios}
    behind = {name: [x.get(name, x.get(baseline or "", max(x.values()))) for x in times] for name in every}
    best = _least(behind)
    backends = {name: ratios for name, ratios in behind.items() if name in BACKENDS}
    backend = _least(backends) if backends else None
    contenders = [contest[best] for contest in cases if best in contest and contest[best].measurement.value]
    speedups = [c.speedup for c in contenders if c.speedup]
    return Advice(
        case.name,
        case.about,
        best,
        behind=geometric_mean(behind[best]) or 1.0,
        worst=max(behind[best]),
        wins=sum(one.winner == best for one in decided),
        ties=sum(best in one.ties for one in decided),
        covered=len(contenders),
        cases=len(cases),
        speedup=geometric_mean(speedups),
        compared=len(speedups),
        memory_reduction=reductions.get(best),
        backend=BACKENDS[backend] if backend else None,
        backend_behind=geometric_mean(backends[backend]) if backend else None,
        runs=tuple(sorted({c.measurement.run_id for c in contenders})),
    )


def _least(behind: dict[str, list[float]]) -> str:
    """Return the implementation with the least loss on average."""
    return min(behind, key=lambda name: (geometric_mean(behind[name]), name))


def _reductions(store: Store, scopes: Sequence[Filters], case: UseCase) -> dict[str, float]:
    """Return the baseline's peak memory over each implementation's, as geometric means."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for scope in scopes:
        table = pages.memory(store, replace(scope, dtype=case.dtypes), "peak_memory_mb")
        table = table[table["seqlen"].between(case.shortest, case.longest) & table["reduction"].notna()]
        for name, rows in table.groupby("implementation"):
            found[name] += rows["reduction"].tolist()
    return {name: geometric_mean(reductions) for name, reductions in found.items()}
