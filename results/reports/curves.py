"""The points of a report's charts: printed numbers by sequence length, and our numbers of the same shapes."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from results.grouping import grouped
from results.implementations import Declared
from results.levels import level_of
from results.records import Measurement, Status, compatible
from results.reports.derived import enriched
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs
from results.slice import BASELINES


class CurvePoint(NamedTuple):
    """One number of a curve. Own numbers have a shape that the report prints."""

    ours: bool
    name: str  # the report's implementation
    metric: str
    mode: str | None
    dtype: str | None
    head_dim: int | None
    seqlen: int
    setting: str  # the rest of the shape, such as B1 H16 causal
    value: float
    words: str  # implementation and shape


def curve_points(printed: Runs, own: Runs, implementations: Mapping[str, str]) -> list[CurvePoint]:
    """Return every printed number that has a sequence length, followed by our numbers of the same shapes.

    Our speedups are over the implementation that replaces the report's baseline, in the same run.
    """
    found = [_point(m, m, ours=False) for m in _printed(printed)]
    baseline = next((implementations[name] for name in BASELINES if name in implementations), None)
    for run, measurements in own:
        declared: Declared = run.implementations or {}
        numbers = OwnNumbers(enriched(run, measurements), implementations, declared)
        known = (m for m in (*numbers.measurements, *_speedups(numbers, baseline)) if m.value)
        places = grouped(known, attrgetter("metric", "mode", "implementation", "case.seqlen_q"))
        for theirs in _printed(printed):
            name = numbers.implementations.get(theirs.implementation)
            candidates = places.get((theirs.metric, theirs.mode, name or "", theirs.case.seqlen_q), ())
            ours = next((m for m in candidates if compatible(theirs.case, m.case, but=("inputs",))), None)
            if ours:
                found.append(_point(theirs, ours, ours=True))
    return list({point[:-2]: point for point in found}.values())


def _printed(runs: Runs) -> Iterator[Measurement]:
    return (m for _, measurements in runs for m in measurements if m.value and m.case.seqlen_q)


def _speedups(numbers: OwnNumbers, baseline: str | None) -> Iterator[Measurement]:
    """Yield the speedup of every latency of a run that has the baseline's latency in the same case."""
    for m in numbers.measurements:
        base = numbers.found.get((m.case, baseline, m.mode, "latency_ms"))
        if m.metric == "latency_ms" and m.value and base and base.value:
            ratio = base.value / m.value
            yield Measurement(m.run_id, m.case, m.implementation, "speedup", Status.OK, m.mode, value=ratio)


def _point(theirs: Measurement, number: Measurement, *, ours: bool) -> CurvePoint:
    case = theirs.case
    said = [
        case.subject if case.subject != "attention" else None,
        f"B{case.batch}" if case.batch else None,
        f"H{case.num_heads}" if case.num_heads else None,
        {True: "causal", False: "full"}.get(case.causal),
    ]
    named = ours, theirs.implementation, theirs.metric, theirs.mode, case.dtype, case.head_dim, case.seqlen_q
    words = f"{number.implementation} {level_of(number.case).short(number.case)}"
    return CurvePoint(*named, setting=" ".join(word for word in said if word), value=number.value, words=words)
