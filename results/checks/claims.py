"""Ratios, summaries and marks of a table that its own numbers do not give."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter, itemgetter

from results.checks.finding import Found, Numbers, printed_range, said
from results.grouping import grouped
from results.metrics import METRICS, RATIO_OF
from results.records import Measurement, compatible

_LOW, _HIGH = "low end of a range", "high end of a range"
_MOST_CANDIDATES = 30  # other rows of a length that a printed ratio is compared with, so that a check costs O(rows)
_FROM_SEQLEN = re.compile(r"at seq_?len of (\d+) and more")


@dataclass(frozen=True)
class _Pair:
    """A row and its baseline, and from where to where their ratio can be, as both are rounded."""

    row: Measurement
    baseline: Measurement
    ratio: float
    low: float
    high: float


def summary_not_derivable(numbers: Numbers) -> Found:
    """A range that a summary gives is not the range of its tables."""
    claims = [m for m in numbers.of(*RATIO_OF) if m.case.seqlen_q is None and m.mode and m.baseline]
    known = _pairs(numbers) if claims else {}
    ends = {(m.run_id, m.origin): m for m in claims}
    for low in claims:
        high = ends.get((low.run_id, (low.origin or "").removesuffix("low") + "high"))
        if _LOW not in (low.note or "") or not high or _HIGH not in (high.note or ""):
            continue
        least = int(match[1]) if (match := _FROM_SEQLEN.search(low.note)) else 0
        pairs = [
            pair
            for pair in known[low.metric, low.implementation, low.baseline]
            if pair.row.mode == low.mode
            and compatible(low.case, pair.row.case)
            and (pair.row.case.seqlen_q or 0) >= least
        ]
        if not pairs:
            continue
        first, last = min(pairs, key=lambda pair: pair.ratio), max(pairs, key=lambda pair: pair.ratio)
        if not (_agrees(low, [first]) and _agrees(high, [last])):
            rows = low, high, first.row, first.baseline, last.row, last.baseline
            facts = {"first": first, "last": last, "low": _arithmetic(first), "high": _arithmetic(last)}
            yield said("summary", *rows, where=f" from seqlen {least} on" if least else "", **facts)


def best_is_not_best(numbers: Numbers) -> Found:
    """The bold time of a row is not its fastest."""
    placed = (m for m in numbers.of("latency_ms") if m.printed and m.origin)
    for cells in grouped(placed, lambda m: (m.run_id, m.origin.rpartition(" / ")[0])).values():
        bold = [m for m in cells if m.printed.startswith("**")]
        best = min(cells, key=lambda m: m.value)
        if len(bold) == 1 < len(cells) and best.value < bold[0].value:
            yield said("best", bold[0], best)


def not_derivable(numbers: Numbers, rule: str) -> Found:
    """A printed speedup or reduction does not follow from the printed numbers, even with rounding.

    Under the rule `cut_off` it would follow, if it was cut off instead of rounded. Each comes with the nearest pair.
    """
    known: dict[tuple, list[_Pair]] = {}  # by case, and by length for claims that leave other fields open
    for key, found in _pairs(numbers).items():
        for pair in found:
            for case, mode in product((pair.row.case, pair.row.case.seqlen_q), {pair.row.mode, None}):
                known.setdefault((*key, pair.row.run_id, mode, case), []).append(pair)
    for claim in numbers.of(*RATIO_OF):
        if claim.case.seqlen_q is None or not claim.baseline:
            continue
        of_claim = claim.metric, claim.implementation, claim.baseline, claim.run_id, claim.mode
        pairs = [
            pair
            for case in (claim.case, claim.case.seqlen_q, None)
            for pair in known.get((*of_claim, case), ())[:_MOST_CANDIDATES]
            if compatible(claim.case, pair.row.case) and claim.timing in (None, pair.row.timing)
        ]
        if pairs and not _agrees(claim, pairs):
            nearest = min(pairs, key=lambda pair: abs(pair.ratio - claim.value))
            if _is_cut_off(claim, nearest) == (rule == "cut_off"):
                printed = (claim.printed or f"{claim.value:g}").replace("*", "")
                facts = {"ratio": nearest.ratio, "unit": METRICS[claim.metric].unit, "arithmetic": _arithmetic(nearest)}
                yield said(rule, claim, nearest.row, nearest.baseline, printed=printed, **facts)


def _is_cut_off(claim: Measurement, pair: _Pair) -> bool:
    """Tell whether the ratio can be what is printed and less than one unit of its last digit more."""
    low, high = printed_range(claim)
    return claim.value <= pair.high and pair.low < claim.value + high - low


def _pairs(numbers: Numbers) -> dict[tuple[str, str, str], list[_Pair]]:
    """Return by metric of the ratio, implementation and baseline every row with its baseline in the same run."""
    of_length = attrgetter("implementation", "run_id", "metric", "mode", "timing", "case.seqlen_q")
    found: dict[tuple[str, str, str], list[_Pair]] = {}
    for metric, divided in RATIO_OF.items():
        wanted = {(m.implementation, m.baseline) for m in numbers.of(metric) if m.baseline}
        found |= {(metric, *pair): [] for pair in wanted}
        rows, baselines = numbers.grouped(of_length, *divided), grouped(wanted, itemgetter(0))
        for key, group in rows.items():
            for _, baseline in baselines.get(key[0], ()):
                there = rows.get((baseline, *key[1:]), ())
                found[metric, key[0], baseline] += _matched(metric, group, there) if there else ()
    return found


def _matched(metric: str, rows: Iterable[Measurement], baselines: Sequence[Measurement]) -> Iterator[_Pair]:
    exact = {base.case: base for base in reversed(baselines)}
    for row in rows:
        base = exact.get(row.case)
        base = base or next((b for b in baselines[:_MOST_CANDIDATES] if compatible(row.case, b.case)), None)
        if base and row.value and base.value:
            yield _pair(metric, row, base)


def _pair(metric: str, row: Measurement, base: Measurement) -> _Pair:
    """Return the ratio that the metric means: baseline over row, row over baseline for a rate, or percent saved."""
    lower = METRICS[row.metric].better == "lower"
    (up, up_range), (down, down_range) = ((m.value, printed_range(m)) for m in ((base, row) if lower else (row, base)))
    low, high = up_range[0] / down_range[1], up_range[1] / max(down_range[0], 1e-12)
    if metric == "memory_saved_percent":
        return _Pair(row, base, *(100 * (1 - 1 / ratio) for ratio in (up / down, low, high)))
    return _Pair(row, base, up / down, low, high)


def _agrees(claim: Measurement, pairs: Sequence[_Pair]) -> bool:
    """Tell whether a claim is the ratio of a pair; without a mode it may be of times together, which is in between."""
    low, high = printed_range(claim)
    groups = [[pair] for pair in pairs] if claim.mode else [pairs]
    return any(min(p.low for p in group) <= high and low <= max(p.high for p in group) for group in groups)


def _arithmetic(pair: _Pair) -> str:
    up, down = (pair.baseline, pair.row) if METRICS[pair.row.metric].better == "lower" else (pair.row, pair.baseline)
    return f"{up.value:g} / {down.value:g}"
