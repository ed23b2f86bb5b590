"""Answers to the claims of report attention_layers_a100."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from results import reports
from results.records import Case, compatible
from results.reports.own import OwnNumbers, case_fields

NAME = "attention_layers_a100"
_PASSES = {"Forward": "fwd", "Backward": "bwd", "Total": "fwd_bwd"}


def _cases(numbers: OwnNumbers) -> set[Case]:
    """Return the own cases that are one of the report's layers."""
    wanted = [Case(**case_fields(grid.facts)) for grid in reports.get(NAME).grids]
    own = {m.case for m in numbers.measurements}
    return {case for case in own if any(compatible(layer, case) for layer in wanted)}


def _fastest(numbers: OwnNumbers, passes: Sequence[str]) -> str | None:
    """Return for each pass in how many layers of the report each backend takes the least time."""
    parts = []
    for word in passes:
        wins: Counter[str] = Counter()
        for case in _cases(numbers):
            times = {
                own: m.value
                for own in map(numbers.own, reports.get(NAME).implementations)
                if (m := numbers.found.get((case, own, _PASSES[word], "latency_ms"))) and m.value
            }
            if len(times) == len(reports.get(NAME).implementations):
                wins[min(times, key=times.__getitem__)] += 1
        if wins:
            counts = ", ".join(f"{name} {count} of {wins.total()}" for name, count in wins.most_common())
            parts.append(f"{word.lower()}: {counts}")
    return "; ".join(parts) or None


fastest_by_pass, fastest_overall = (partial(_fastest, passes=each) for each in (("Forward", "Backward"), ("Total",)))


def tests(numbers: OwnNumbers) -> str | None:
    """Return how many passes of layers have times, in how many kinds of layers. Dtypes are not counted apart."""
    cases = _cases(numbers)
    passes = {
        (replace(m.case, dtype=None), m.mode)
        for m in numbers.measurements
        if m.metric == "latency_ms" and m.value and m.mode in _PASSES.values() and m.case in cases
    }
    return f"{len(passes)} across {len({case.subject for case, _ in passes})} attention types" if passes else None
