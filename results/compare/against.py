"""Two versions of the kernels that one sweep measured together: the verdict for every cell.

The versions took turns, A B in one round and B A in the next, so each round gives one ratio of medians in which the
machine's clock and load cancel. The interval of the speedup (other version over this one) is Student's t over those
ratios, their variance moderated by what is usual for cells of like length (results.compare.between_rounds).

What does not cancel is what a process keeps to its end, such as where its memory lies. The interval holds it as
`usual_offset`, or as what PyTorch's own kernels of this very sweep differ by, where enough of them took part and both
versions have the same PyTorch. Standard library and records only.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from results import levels
from results.compare import compare
from results.compare.between_rounds import PairOfRounds, RoundMedians, RoundSpread, rounds, student, usual_of_pairs
from results.compare.between_runs import LEAST, is_control
from results.compare.verdicts import CERTAINTY, Judgement, Verdict, judgement, paired_ends, waiting
from results.derive import geometric_mean
from results.implementations import version_name
from results.records import Measurement, Run

_ONE_ROUND = "Both were sampled in one round, which gives no verdict; a run without --quick takes eight."
# What two live processes of the same code differ by in all rounds, a standard deviation: a share of the time, and some
# time. Of 80 cells of an H200: 0.5 % below 50 us, 0.26 % to 100 us, 0.1 % above (2026-11).
_OFFSET, _OFFSET_MS, _OFFSET_FREEDOM = 0.001, 0.00015, 30.0
_FACTS = ("git_commit", "kernel_hash", "torch", "triton", "cuda", "cudnn", "python")
Pair = tuple[Measurement, Measurement]  # the other version's and this one's


class NotAgainst(ValueError):
    """The run measured one version alone."""


def compare_versions(run: Run, measurements: Sequence[Measurement]) -> compare.Comparison:
    """Judge this version against the other in every cell that both tried. Raises NotAgainst for any other run."""
    if not run.against:
        raise NotAgainst(f"Run {run.run_id!r} measured one version alone; `runner run --against` measures two.")
    label = str(run.against.get("label"))
    pairs = _pairs(measurements, label)
    same_torch = run.against.get("torch") == run.torch
    cells = sorted((cell for cell in _judged(pairs, same_torch) if cell), key=compare.urgency)
    tried = Counter((second.timing, second.implementation, second.mode) for _, second in pairs)
    return compare.Comparison(
        first=f"{run.run_id}@{label}",
        second=run.run_id,
        same_run=False,
        changes=tuple(
            compare.ChangedFact(fact, run.against.get(fact), getattr(run, fact))
            for fact in _FACTS
            if run.against.get(fact) != getattr(run, fact)
        ),
        means=tuple(compare.geometric_means(cells, tried)),
        cells=tuple(cells),
        coverage=tuple(compare.coverage(cells, [Counter(second.timing for _, second in pairs), Counter(), Counter()])),
        remarks=tuple(_remarks(cells, same_torch)),
    )


def in_words(found: compare.Comparison) -> str:
    """Return the verdict of every cell, a line each, then their counts and means."""
    lines = [_line(cell) for cell in found.cells]
    for timing in dict.fromkeys(cell.timing for cell in found.cells):
        those = [cell for cell in found.cells if cell.timing == timing]
        counts = Counter(cell.outcome for cell in those)
        mean = geometric_mean([c.judgement.speedup for c in those if c.judgement and c.judgement.speedup])
        words = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        on_average = f"; {mean:.3f}x on average" if mean else ""
        lines.append(f"Against {found.first}, {timing} time: {words} of {len(those)} cells{on_average}.")
    return "\n".join([*lines, *found.remarks]) or f"No cell of {found.second} has a time of both versions."


def judge_rounds(first: Measurement, second: Measurement, like: RoundSpread | None, apart: RoundSpread) -> Judgement:
    """Return the verdict of the second latency against the first, both taken in the same rounds.

    `like` is the spread between rounds that is usual for cells of that length, `apart` what two processes of the same
    code differ by in all rounds.
    """
    before, after = rounds(first), rounds(second)
    if not (before and after and before.said and after.said and len(before.logs) == len(after.logs)):
        ratio = first.value / second.value if first.value and second.value else None
        alone = len(first.round_sizes) == len(second.round_sizes) == 1
        reason = _ONE_ROUND if alone else "The two did not take the same rounds."
        return Judgement(Verdict.UNCLEAR, ratio, None, None, None, "no rounds", reason)
    waited = max(-math.log1p(-waiting(m)) for m in (first, second))  # on a busy host
    basis = f"{len(before.logs)} paired rounds of two live processes{like.wider if like else ''}"
    found = judgement(*paired_ends(before, after, like, apart, waited))
    return replace(found, basis=basis, apart=math.sqrt(apart.variance))


def leave_open(cells: Mapping[int, tuple[RoundMedians, RoundMedians]], pairs: list[PairOfRounds]) -> list[int]:
    """Return the cells, each given by both sides of its rounds, to which more rounds may give a verdict.

    They have none yet, and their rounds differ by more than the two processes do. The pairs of the cells join those
    that the run has so far, because many pairs tell what is usual.
    """
    new = {
        cell: (math.exp(statistics.fmean(a.logs)), a, b) for cell, (a, b) in cells.items() if len(a.logs) == len(b.logs)
    }
    pairs += new.values()
    usual = usual_of_pairs(pairs)
    found: list[int] = []
    for cell, (ms, after, before) in new.items():
        ends = paired_ends(before, after, usual.near(ms), apart := usual_offset(ms))
        by_rounds = ends[0].below > math.sqrt(2 * apart.variance) * student(CERTAINTY, apart.freedom)
        found += [cell] if by_rounds and judgement(*ends).verdict is Verdict.UNCLEAR else []
    return found


def usual_offset(latency_ms: float) -> RoundSpread:
    """Return what two live processes of the same code differ by in all rounds of a call of that length."""
    return RoundSpread(_OFFSET**2 + (_OFFSET_MS / latency_ms) ** 2, _OFFSET_FREEDOM)


def _pairs(measurements: Iterable[Measurement], label: str) -> list[Pair]:
    """Return the latencies of both versions by cell; a cell that the other version has not tried has no pair."""
    latencies: dict[tuple[Any, ...], Measurement] = {
        (m.case, m.mode, m.timing, m.implementation): m for m in measurements if m.metric == "latency_ms"
    }
    found = []
    for (*cell, name), second in latencies.items():
        first = latencies.get((*cell, version_name(name, label)))
        if first and "@" not in name:
            found.append((first, second))
    return found


def _judged(pairs: Sequence[Pair], same_torch: bool) -> Iterable[compare.ComparedCell | None]:
    for timing in dict.fromkeys(second.timing for _, second in pairs):
        those = [pair for pair in pairs if pair[1].timing == timing]
        like = usual_of_pairs(
            (second.value, a, b)
            for first, second in those
            if first.value and second.value and (a := rounds(first)) and (b := rounds(second))
            if len(a.logs) == len(b.logs)
        )
        seen = _seen_offset(those) if same_torch else None
        for first, second in those:
            found = None
            if first.value and second.value:
                apart = max(usual_offset(second.value), seen or usual_offset(second.value), key=lambda s: s.variance)
                found = judge_rounds(first, second, like.near(second.value), apart)
            yield compare.compared_cell(first, second, found)


def _seen_offset(pairs: Sequence[Pair]) -> RoundSpread | None:
    """Return what PyTorch's own kernels of this sweep differ by; None where too few of them were taken."""
    controls = [
        math.log(first.value / second.value)
        for first, second in pairs
        if is_control(second.implementation) and first.value and second.value
    ]
    if len(controls) < LEAST:
        return None
    return RoundSpread(statistics.fmean(log**2 for log in controls), float(len(controls)))


def _remarks(cells: Sequence[compare.ComparedCell], same_torch: bool) -> Iterable[str]:
    offsets = [cell.judgement.apart for cell in cells if cell.judgement and cell.judgement.apart]
    if offsets:
        span = " to ".join(dict.fromkeys(f"{offset:.1%}" for offset in (min(offsets), max(offsets))))
        yield f"The intervals include what two processes of the same code differ by: {span}."
    for timing in dict.fromkeys(cell.timing for cell in cells):
        controls = compare.controls_of(cells, timing)
        mean = geometric_mean([cell.judgement.speedup for cell in controls])
        if mean and same_torch:
            where = f"in {timing} time over {len(controls)} shapes"
            yield f"PyTorch's own kernels, which did not change, are {mean:.3f}× as fast {where}."


def _line(cell: compare.ComparedCell) -> str:
    where = f"{cell.implementation} {cell.mode}, {cell.timing} time, {levels.words(cell.case)}"
    found = cell.judgement
    if found is None or found.low is None:
        return f"{cell.outcome:<8}{where}: {cell.reason}"
    return f"{cell.outcome:<8}{found.speedup:.3f}x ({found.low:.3f} to {found.high:.3f})  {where}"
