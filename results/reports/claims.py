"""Claims: sentences of a report as data, and the answers that the numbers of one run give to them.

A claim names the place of its sentence and an answer. An answer is made by one of the functions below from picks: a
pick is an implementation, a metric, a mode and a condition on cases. Names are those of the report.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from results.derive import geometric_mean
from results.grouping import grouped
from results.metrics import RATIO_OF
from results.records import Case, Measurement, Status, compatible
from results.reports.layout import Labels, Note, Section, TableRow
from results.reports.own import OwnNumbers

Answer = Callable[[OwnNumbers], str | None]
Ratios = Sequence[tuple[Case, float]]
Words = Callable[[str, str], str]  # the text of a cell by its row and column
_COUNTED = re.compile(r"\((\d+) ")  # the number of cases after a range


@dataclass(frozen=True)
class Claim:
    """A sentence of a report. Without words it is the figures that the report prints at that place."""

    where: str
    answer: Answer
    words: str = ""


@dataclass(frozen=True)
class Pick:
    """The numbers that a claim is about."""

    implementation: str
    baseline: str = ""
    metric: str = "latency_ms"
    mode: str | None = None  # None: every mode
    case: Mapping[str, object] = field(default_factory=dict)  # required values of fields
    seqlen: tuple[float, float] = (1, math.inf)
    printed: bool = False  # only cases that the report prints too
    prefer: str = ""  # replaces the implementation if the run has it in such cases
    baseline_case: Mapping[str, Any] = field(default_factory=dict)  # fields in which the baseline's case differs

    def name(self, numbers: OwnNumbers) -> str:
        """Return the own implementation that is picked."""
        preferred = (m for m in numbers.measurements if m.implementation == self.prefer and m.mode == self.mode)
        there = bool(self.prefer) and any(self._holds(m.case, numbers, any_seqlen=True) for m in preferred)
        return self.prefer if there else numbers.own(self.implementation)

    def measurements(self, numbers: OwnNumbers) -> list[Measurement]:
        """Return the picked numbers of a run."""
        name = self.name(numbers)
        return [
            m
            for m in numbers.measurements
            if (m.implementation, m.metric) == (name, self.metric) and self.mode in (None, m.mode)
            if m.value is not None and self._holds(m.case, numbers)
        ]

    def ratios(self, numbers: OwnNumbers) -> Ratios:
        """Return baseline over implementation for each case and mode that has both."""
        base, found = numbers.own(self.baseline), []
        for m in self.measurements(numbers):
            other = numbers.found.get((replace(m.case, **self.baseline_case), base, m.mode, m.metric))
            if m.value and other and other.value:
                found.append((m.case, other.value / m.value))
        return found

    def _holds(self, case: Case, numbers: OwnNumbers, *, any_seqlen: bool = False) -> bool:
        shortest, longest = self.seqlen
        return (
            all(getattr(case, name) == value for name, value in self.case.items())
            and (any_seqlen or shortest <= (case.seqlen_k or 0) <= longest)
            and (not self.printed or _is_printed(case, numbers))
        )


def section(claims: Iterable[Claim], printed: Iterable[Measurement], numbers: OwnNumbers) -> Section:
    """Return the claims as a table: the place of each, its words or printed figures, and the answer of a run."""
    figures: dict[str, str] = {(m.origin or "").replace("\\", ""): m.printed or "" for m in printed}
    rows = []
    for claim in claims:
        at_place = (text for at, text in figures.items() if at == claim.where or at.startswith(f"{claim.where} / "))
        rows.append(answered(claim.where, claim.words or " to ".join(at_place), claim.answer(numbers)))
    return Section("Claims", "", ("Where",), ("Figure",), (None,), tuple(rows))


def answered(where: str, printed: str, own: str | None) -> TableRow:
    """Return a row of words. A number in parentheses after a range says how many cases the range has."""
    return TableRow((where,), (printed,), (own,) if own else None, cases=tuple(map(int, _COUNTED.findall(own or ""))))


def words_table(
    note: Note, title: str, cell: Words, columns: Labels = (), only: Labels = (), *, pooled: bool = False
) -> Section:
    """Return a table of words with our text in each cell, by its row and column; by default of all rows and columns."""
    shown = columns or note.header[1:]
    rows = []
    for label, *printed in note.rows:
        if not only or label in only:
            own = tuple(cell(label, column) for column in shown)
            rows.append(TableRow((label,), tuple(printed[: len(shown)]), own if any(own) else None))
    return Section(title, "", note.header[:1], shown, (None,) * len(shown), tuple(rows), pooled=pooled)


def span_words(values: Sequence[float], what: str = "") -> str | None:
    """Return a range of ratios in words, with the number of cases if `what` names a case; None if there is none."""
    if not values:
        return None
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    words = f"{low}x" if low == high else f"{low} to {high}x"
    return f"{words} ({len(values)} {what}{'s' * (len(values) != 1)})" if what else words


def span(numbers: OwnNumbers, pick: Pick, what: str = "") -> str | None:
    """Answer with the range of ratios."""
    return span_words([ratio for _, ratio in pick.ratios(numbers)], what)


def span_by_dtype(
    numbers: OwnNumbers, metric: str, implementation: str, baseline: str, **conditions: Any
) -> str | None:
    """Answer a printed ratio with the range of each dtype, in the cases that the report prints."""
    pick = Pick(implementation, baseline, RATIO_OF[metric][0], printed=True, **conditions)
    found = grouped(pick.ratios(numbers), lambda pair: pair[0].dtype or "")
    return _by_dtype({dtype: str(span_words([ratio for _, ratio in pairs])) for dtype, pairs in found.items()})


def largest(numbers: OwnNumbers, metric: str, **conditions: Any) -> str | None:
    """Answer with the largest number of all implementations, by dtype, in the cases that the report prints."""
    found: dict[str, float] = {}
    for name in numbers.implementations:
        for m in Pick(name, metric=metric, printed=True, **conditions).measurements(numbers):
            found[m.case.dtype or ""] = max(m.value, found.get(m.case.dtype or "", 0.0))
    return _by_dtype({dtype: f"{value:.1e}" for dtype, value in found.items()})


def share(numbers: OwnNumbers, picks: Sequence[Pick], *, slower: bool = False, with_span: bool = False) -> str | None:
    """Answer with the number of cases in which the implementation is faster than its baseline, or slower."""
    ratios = [ratio for pick in picks for _, ratio in pick.ratios(numbers)]
    count = sum(ratio < 1 if slower else ratio > 1 for ratio in ratios)
    words = f"in {count} of {len(ratios)} cases" + (f", {span_words(ratios)}" if with_span else "")
    return words if ratios else None


def counted(numbers: OwnNumbers, pick: Pick, words: str) -> str | None:
    """Answer with the number of cases that have a ratio, and their range."""
    ratios = [ratio for _, ratio in pick.ratios(numbers)]
    return f"{len(ratios)} {words}, {span_words(ratios)}" if ratios else None


def mean(numbers: OwnNumbers, pick: Pick) -> str | None:
    """Answer with the geometric mean of the ratios."""
    found = geometric_mean(ratio for _, ratio in pick.ratios(numbers))
    return f"{found:.2f}x" if found else None


def joined(
    numbers: OwnNumbers, parts: Sequence[tuple[str, Pick | None, Answer]], *, by: str = ", ", first: bool = False
) -> str | None:
    """Answer with several answers, each in its form, which may have a place for the `name` of what is picked.

    With `first` there is no answer without the first part.
    """
    found = [(form, pick.name(numbers) if pick else "", answer(numbers)) for form, pick, answer in parts]
    if first and not found[0][-1]:
        return None
    return by.join(form.format(answer, name=name) for form, name, answer in found if answer) or None


def stops(numbers: OwnNumbers, implementation: str, mode: str, level: str) -> str | None:
    """Answer with the shortest context that does not fit."""
    name = numbers.own(implementation)
    out = [
        m.case.seqlen_k
        for m in numbers.measurements
        if (m.implementation, m.mode, m.metric, m.case.level) == (name, mode, "latency_ms", level)
        if m.status in (Status.OOM, Status.SKIPPED) and m.case.seqlen_k
    ]
    return f"{name} does not fit from {min(out):,} tokens" if out else None


def fastest(numbers: OwnNumbers, modes: Mapping[str, str]) -> str | None:
    """Answer with the number of printed cases in which each implementation is the fastest; `modes` has their words."""
    parts = []
    for mode, word in modes.items():
        wins: Counter[str] = Counter()
        for case in dict.fromkeys(m.case for m in _printed(numbers)):
            found = [numbers.found.get((case, own, mode, "latency_ms")) for own in numbers.implementations.values()]
            if all(m and m.value for m in found):
                wins[min(found, key=lambda m: m.value).implementation] += 1
        if wins:
            counts = ", ".join(f"{name} {count} of {wins.total()}" for name, count in wins.most_common())
            parts.append(f"{word}: {counts}")
    return "; ".join(parts) or None


def timed(numbers: OwnNumbers, modes: Sequence[str], words: str) -> str | None:
    """Answer with the number of printed cases and modes that have times, in any dtype, and of their subjects."""
    those = [m for m in _printed(numbers) if m.metric == "latency_ms" and m.value and m.mode in modes]
    passes = {(replace(m.case, dtype=None), m.mode) for m in those}
    return words.format(len(passes), len({case.subject for case, _ in passes})) if passes else None


def _printed(numbers: OwnNumbers) -> list[Measurement]:
    """Return the numbers of cases that the report prints too."""
    there = {case for case in {m.case for m in numbers.measurements} if _is_printed(case, numbers)}
    return [m for m in numbers.measurements if m.case in there]


def _is_printed(case: Case, numbers: OwnNumbers) -> bool:
    return any(compatible(printed, case) for printed in numbers.printed)


def ran(numbers: OwnNumbers, implementation: str, mode: str, case: Mapping[str, object]) -> str | None:
    """Answer with the number of cases of this kind that ran, of those that were tried."""
    wanted = (numbers.own(implementation), mode, "latency_ms")
    tried = [m for m in numbers.measurements if (m.implementation, m.mode, m.metric) == wanted]
    found = [m.status for m in tried if all(getattr(m.case, name) == value for name, value in case.items())]
    return f"{found.count(Status.OK)} of {len(found)} cases ran" if found else None


def gap(numbers: OwnNumbers, pick: Pick, sizes: Mapping[str, str]) -> str | None:
    """Answer with the mean ratio at the smallest and at the largest of each size; `sizes` has their words."""
    found, parts = pick.ratios(numbers), []
    for name, word in sizes.items():
        there = sorted({getattr(case, name) for case, _ in found})
        if len(there) > 1:
            ends = (there[0], there[-1])
            first, last = (geometric_mean(r for case, r in found if getattr(case, name) == end) for end in ends)
            parts.append(f"{word} {ends[0]} to {ends[1]}: {first:.2f} to {last:.2f}x")
    return ", ".join(parts) or None


def growths(numbers: OwnNumbers, picks: Sequence[Pick], words: str) -> str | None:
    """Answer with the growth of a quantity of each pick; `words` has a place for the name and one for the growth."""
    found = ((pick.name(numbers), growth(pick.measurements(numbers))) for pick in picks)
    return ", ".join(words.format(name, grows) for name, grows in found if grows) or None


def growth(measurements: Iterable[Measurement]) -> str | None:
    """Return how a quantity grows between the two longest sequences of cases that differ only in length."""
    found: dict[Case, dict[int, float]] = {}
    for m in measurements:
        if m.value and m.case.seqlen_k:
            found.setdefault(replace(m.case, seqlen_q=None, seqlen_k=None), {})[m.case.seqlen_k] = m.value
    longest = max((lengths for lengths in found.values() if len(lengths) > 1), key=max, default=None)
    if longest is None:
        return None
    short, long = sorted(longest)[-2:]
    return f"grows as N^{exponent(longest, short, long):.1f} from {short:,} to {long:,}"


def ends(numbers: OwnNumbers, pick: Pick, *, form: str, named: bool = False) -> str | None:
    """Answer with the ratio at the shortest and at the longest sequence, and its growth between them."""
    ratios = {case.seqlen_k or 0: ratio for case, ratio in pick.ratios(numbers)}
    if len(ratios) < 2:
        return None
    short, long = min(ratios), max(ratios)
    words = " to ".join(f"{ratios[at]:{form}}x at {at:,}" for at in (short, long))
    grows = f"{words}, grows as N^{exponent(ratios, short, long):.1f}"
    return f"{pick.name(numbers)}: {grows}" if named else grows


def exponent(values: Mapping[int, float], short: int, long: int) -> float:
    """Return the exponent of the power law through the values at two lengths."""
    return math.log(values[long] / values[short]) / math.log(long / short)


def _by_dtype(words: Mapping[str, str]) -> str | None:
    """Join the words of all dtypes. A single dtype is not named."""
    if len(words) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{dtype} {of_dtype}" for dtype, of_dtype in sorted(words.items())) or None


ANSWERS: Mapping[str, Callable[..., str | None]] = {
    each.__name__: each
    for each in (
        *(span, span_by_dtype, largest, share, counted, mean, joined, stops, fastest, timed, ran, gap, growths, ends),
    )
}
