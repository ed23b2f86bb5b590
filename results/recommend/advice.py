"""What to use when: of each use case the implementation that loses least time over its shapes, and what says so.

Where an implementation has no number the baseline stands in for it, as it would in use; where that has none either,
the slowest that ran. So nobody leads because it was spared its hard shapes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.derive import geometric_mean
from results.query import pages
from results.recommend.rule import BACKENDS
from results.recommend.winners import Contest, contests, decide
from results.slice import AS_PUBLISHED, Filters
from results.store.database import Store

ANY, MANY, FEW = (1, 1 << 30), (8, 1 << 30), (1, 7)  # batch times heads


@dataclass(frozen=True)
class UseCase:
    """A kind of work, as the shapes that stand for it."""

    name: str
    about: str
    mode: str
    timing: str = "kernel"
    mask: str = "causal"
    window: bool = False  # whatever its size; otherwise none
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    shortest: int = 1
    longest: int = 1 << 30
    heads: tuple[int, int] = ANY  # batch times heads, where the use case asks for it
    head_dim: int = 1  # and more

    def holds(self, contest: Contest) -> bool:
        """Tell whether a case is one of its shapes."""
        case = next(iter(contest.values())).measurement.case
        heads = case.batch * case.num_heads if case.batch and case.num_heads else None
        fits = self.heads == ANY if heads is None else self.heads[0] <= heads <= self.heads[1]
        return (
            case.dtype in self.dtypes
            and self.shortest <= (case.seqlen_q or 0) <= self.longest
            and fits
            and (case.head_dim or 0) >= self.head_dim
        )


USE_CASES = (
    UseCase(
        "Training",
        "forward and backward, causal, from 512 tokens, 8 or more heads, head_dim from 64",
        "fwd_bwd",
        shortest=512,
        heads=MANY,
        head_dim=64,
    ),
    UseCase(
        "Long prompts",
        "forward, causal, from 4k tokens, 8 or more heads, head_dim from 64",
        "fwd",
        shortest=4096,
        heads=MANY,
        head_dim=64,
    ),
    UseCase(
        "Encoders",
        "forward, full mask, from 512 tokens, 8 or more heads, head_dim from 64",
        "fwd",
        mask="full",
        shortest=512,
        heads=MANY,
        head_dim=64,
    ),
    UseCase(
        "Training with a window",
        "forward and backward, causal with a sliding window of any size, 8 or more heads, head_dim from 64",
        "fwd_bwd",
        window=True,
        heads=MANY,
        head_dim=64,
    ),
    UseCase(
        "Prompts with a window",
        "forward, causal with a sliding window of any size, 8 or more heads, head_dim from 64",
        "fwd",
        window=True,
        heads=MANY,
        head_dim=64,
    ),
    UseCase(
        "One long sequence",
        "forward and backward, causal, from 16k tokens, fewer than 8 heads",
        "fwd_bwd",
        shortest=16384,
        heads=FEW,
    ),
    UseCase(
        "Few heads",
        "forward and backward, causal, up to 8k tokens, fewer than 8 heads",
        "fwd_bwd",
        longest=8192,
        heads=FEW,
    ),
    UseCase("Short sequences: device time", "forward, causal, up to 512 tokens, device time", "fwd", longest=512),
    UseCase(
        "Short sequences: including launch overhead",
        "forward, causal, up to 512 tokens, host overhead included",
        "fwd",
        "eager",
        longest=512,
    ),
    UseCase("Exact float32", "forward and backward, causal, without TF32", "fwd_bwd", dtypes=("float32",)),
)


@dataclass(frozen=True)
class Advice:
    """Who to take for a use case on one GPU."""

    use_case: str
    about: str
    implementation: str
    behind: float  # geometric mean of its time over the fastest's: 1.02 loses 2 % on average
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
    """Return an advice for each use case that the GPU has shapes of; `filters` gives GPU, baseline, sources, runs."""
    found = []
    there = set(pages.options(store, "timing", gpu=str(filters.gpu), workload="attention")["choice"])
    masks = pages.options(store, "mask", gpu=str(filters.gpu), workload="attention")["choice"].tolist()
    for mode, kind, mask, window in dict.fromkeys(_scope(case) for case in USE_CASES):
        timing = kind if kind in there or kind != "kernel" else AS_PUBLISHED  # a source that does not say how it timed
        scopes = [
            Filters(
                gpu=filters.gpu,
                workload="attention",
                mask=name,
                mode=mode,
                timing=timing,
                baseline=filters.baseline,
                source=filters.source,
                run=filters.run,
            )
            for name in ([name for name in masks if name.startswith(f"{mask} window ")] if window else [mask])
        ]
        cases = [contest for scope in scopes for contest in contests(store, scope)]
        for case in USE_CASES:
            if _scope(case) == (mode, kind, mask, window):
                own = [contest for contest in cases if case.holds(contest)]
                found.append(_advice(case, own, _reductions(store, scopes, case), filters.baseline))
    order = [case.name for case in USE_CASES]
    return sorted((advice for advice in found if advice), key=lambda advice: order.index(advice.use_case))


def _scope(case: UseCase) -> tuple[str, str, str, bool]:
    """Return what the use cases of one look at the store have in common."""
    return case.mode, case.timing, case.mask, case.window


def _advice(
    case: UseCase, cases: Sequence[Contest], reductions: dict[str, float], baseline: str | None
) -> Advice | None:
    decided = [one for contest in cases if (one := decide([contest])).winner]
    if not decided:
        return None
    times = [{str(o.winner): 1.0, **{rival.name: rival.ratio for rival in o.rivals}} for o in decided]
    behind = {name: _behind(times, name, baseline) for name in {name for ratios in times for name in ratios}}
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


def _behind(times: Sequence[dict[str, float]], name: str, baseline: str | None) -> list[float]:
    """Return in each case its time over the fastest's, or that of what stands in for it."""
    return [ratios.get(name, ratios.get(baseline or "", max(ratios.values()))) for ratios in times]


def _least(behind: dict[str, list[float]]) -> str:
    """Return who loses least on average."""
    return min(behind, key=lambda name: (geometric_mean(behind[name]), name))


def _reductions(store: Store, scopes: Sequence[Filters], case: UseCase) -> dict[str, float]:
    """Return by implementation how many times less peak memory than the baseline, as a geometric mean."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for scope in scopes:
        table = pages.memory(store, replace(scope, dtype=case.dtypes), "peak_memory_mb")
        table = table[table["seqlen"].between(case.shortest, case.longest) & table["reduction"].notna()]
        for name, rows in table.groupby("implementation"):
            found[name] += rows["reduction"].tolist()
    return {name: geometric_mean(reductions) for name, reductions in found.items()}
