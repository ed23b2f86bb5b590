"""What a report claims in words, beside what an own run says to the same sentence.

A claim names an implementation, a metric and often a baseline; what it leaves open, such as the shape, is every case of
the report's tables. Of a range the own figures are the smallest and the largest; of an error the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from results.metrics import RATIO_OF
from results.records import Case, Measurement, Status, compatible
from results.reports.layout import Claim, Row, Says, Section
from results.reports.own import OwnNumbers

TITLE = "Claims"
_WHERE, _FIGURE = "Where", "Figure"


def section(
    claims: Sequence[Claim],
    printed: Sequence[Measurement],
    numbers: OwnNumbers,
    known: Mapping[str, str] | None = None,
) -> Section:
    """Return the claims as a table: where each stands, its figures as printed, and the own run's.

    `known` says by origin what follows without a run.
    """
    by_origin = {m.origin: m.printed or "" for m in printed}
    cases = {m.case for m in printed if m.case.seqlen_q}
    rows = []
    for claim in claims:
        groups = list(claim.figures)
        origins = [claim.origin] if len(groups) == 1 else [f"{claim.origin} / {group}" for group in groups]
        said = " to ".join(by_origin[origin] for origin in origins if origin in by_origin)
        own = (known or {}).get(claim.origin) or _answer(claim, groups, cases, numbers)
        rows.append(Row((claim.origin,), (said,), (own,) if own else None))
    return Section(TITLE, "", (_WHERE,), (_FIGURE,), (None,), tuple(rows))


def with_sentences(found: Section, sentences: Sequence[tuple[str, str, str | None]]) -> Section:
    """Return the claims with sentences after them: where each stands, its words, and what an own run says to it."""
    rows = (Row((where,), (words,), (own,) if own else None) for where, words, own in sentences)
    return replace(found, rows=(*found.rows, *rows))


def ratios(says: Says, cases: set[Case], numbers: OwnNumbers) -> dict[str, list[float]]:
    """Return baseline over implementation for every own case that is one of the report's, by dtype."""
    metric = RATIO_OF[says["metric"]][0]
    found: dict[str, list[float]] = {}
    for ours in _of(says, says["implementation"], metric, cases, numbers):
        base = numbers.found.get((ours.case, numbers.own(says["baseline"]), ours.mode, metric))
        if base and base.value and ours.value:
            found.setdefault(ours.case.dtype or "", []).append(base.value / ours.value)
    return found


def growth(numbers: OwnNumbers, implementation: str, metric: str, mode: str, subject: str | None = None) -> str | None:
    """Say how a metric grows between the two longest sequences that an implementation has it for, all else equal."""
    found: dict[Case, dict[int, float]] = {}
    for m in numbers.measurements:
        if (m.implementation, m.metric, m.mode) == (implementation, metric, mode) and m.value and m.case.seqlen_k:
            if subject not in (None, m.case.subject):
                continue
            alike = replace(m.case, seqlen_q=None, seqlen_k=None)
            found.setdefault(alike, {})[m.case.seqlen_k] = m.value
    longest = max((lengths for lengths in found.values() if len(lengths) > 1), key=max, default=None)
    if longest is None:
        return None
    short, long = sorted(longest)[-2:]
    exponent = math.log(longest[long] / longest[short]) / math.log(long / short)
    return f"grows as N^{exponent:.1f} from {short:,} to {long:,}"


def _answer(claim: Claim, groups: Sequence[str], cases: set[Case], numbers: OwnNumbers) -> str | None:
    says = {**claim.says, **claim.figures[groups[0]]}
    if says["metric"] in RATIO_OF and "baseline" in says:
        return _words({dtype: _span(values, "x") for dtype, values in ratios(says, cases, numbers).items()})
    if says["metric"].startswith("max_error"):
        return _words(dict(_largest_errors(says, cases, numbers)))
    return None


def _words(by_dtype: Mapping[str, str]) -> str | None:
    """Join what each dtype says; a single one needs no name."""
    if len(by_dtype) == 1:
        return next(iter(by_dtype.values()))
    return ", ".join(f"{dtype} {words}" for dtype, words in sorted(by_dtype.items())) or None


def _span(values: Sequence[float], unit: str) -> str:
    low, high = (f"{value:.2f}" for value in (min(values), max(values)))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def _largest_errors(says: Says, cases: set[Case], numbers: OwnNumbers) -> Iterator[tuple[str, str]]:
    """Yield by dtype the largest error of all implementations that stand for one of the report's."""
    found: dict[str, float] = {}
    for name in numbers.implementations:
        for m in _of(says, name, says["metric"], cases, numbers):
            found[m.case.dtype or ""] = max(m.value, found.get(m.case.dtype or "", 0.0))
    return ((dtype, f"{value:.1e}") for dtype, value in found.items())


def _of(says: Says, implementation: str, metric: str, cases: set[Case], numbers: OwnNumbers) -> Iterator[Measurement]:
    """Yield the own numbers of an implementation and metric, in the claim's mode, for the report's cases."""
    wanted = Case(**{name: says[name] for name in ("level", "subject", "head_dim", "dtype") if name in says})
    length, least = says.get("seqlen"), says.get("from_seqlen", 0)
    for m in numbers.measurements:
        named = m.implementation == numbers.own(implementation) and m.metric == metric and m.mode == says.get("mode")
        fits = compatible(wanted, m.case) and length in (None, m.case.seqlen_q) and (m.case.seqlen_q or 0) >= least
        if named and fits and m.status is Status.OK and any(compatible(case, m.case) for case in cases):
            yield m
