"""An own run's numbers for the cells of a published layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.metrics import RATIO_OF
from results.records import CASE_FIELDS, Case, Measurement, Status
from results.reports.layout import MIB, Best, Grid, Labels, Remark, Says, SpreadColumn

WORDS = {
    Status.OOM: "OOM",
    Status.OUT_OF_RESOURCES: "OOR",
    Status.UNSUPPORTED: "N/A",
    Status.SKIPPED: "—",
}
_TIMINGS = {"kernel": "device time, launches excluded", "eager": "plain calls, host overhead included"}
_FORMATS = {
    "latency_ms": "{:.4f}",
    "speedup": "{:.1f}x",
    "memory_reduction": "{:.1f}x",
    "memory_saved_percent": "{:.0f}%",
}


class OwnNumbers:
    """The measurements of one run, looked up by what a layout says of a cell."""

    def __init__(self, measurements: Sequence[Measurement], implementations: Mapping[str, str]) -> None:
        there = {m.implementation for m in measurements}
        self.implementations = {theirs: own if own in there else theirs for theirs, own in implementations.items()}
        self.timing = _timing(measurements)
        self.measurements = [m for m in measurements if m.timing in (None, self.timing)]
        self.found = {(m.case, m.implementation, m.mode, m.metric): m for m in self.measurements}

    def explanation(self) -> str:
        """Return which implementations and timing stand in the tables, and what the words in them mean."""
        shown = {m.implementation for m in self.measurements}
        pairs = [f"{theirs} is {own}" for theirs, own in self.implementations.items() if own in shown and theirs != own]
        timing = f"{self.timing}, {_TIMINGS[self.timing]}" if self.timing else "not said"
        parts = [f"Timing: {timing}", *pairs]
        words = "OOM is out of device memory, OOR out of shared memory or registers, N/A unsupported, — no number"
        return "; ".join(parts) + f".\n\n{words}."

    def tables(self, grid: Grid) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield for each setting that the table's rows and columns do not tell apart the setting and the rows."""
        settings: dict[tuple[tuple[str, Any], ...], dict[Labels, None]] = {}
        for measurement in self.measurements:
            for labels in self._labels(grid, measurement):
                settings.setdefault(_rest(measurement.case, grid, labels), {})[labels] = None
        for rest, found in settings.items():
            ordered = (
                sorted(found, key=lambda labels: [_order(labels[at]) for at in grid.order]) if grid.name else found
            )
            rows = [[*labels, *self._cells(grid, labels, dict(rest))] for labels in ordered]
            yield ", ".join(f"{name}={value}" for name, value in rest if value is not None), rows

    def _labels(self, grid: Grid, measurement: Measurement) -> Iterator[Labels]:
        if measurement.implementation not in self.implementations.values():
            return
        candidates = (grid.name(measurement),) if grid.name else grid.rows
        for labels in candidates:
            for column in grid.columns.values():
                if isinstance(column, Mapping) and self._fits(measurement, {**grid.says, **grid.row(labels), **column}):
                    yield labels
                    break

    def _fits(self, measurement: Measurement, says: Says) -> bool:
        case = _said_fields(says)
        return (
            all(getattr(measurement.case, name) == value for name, value in case.items())
            and measurement.implementation == self.own(says["implementation"])
            and measurement.metric == says["metric"]
            and says.get("mode") in (None, measurement.mode)
        )

    def own(self, implementation: str) -> str:
        """Return the own implementation that stands in a published one's place."""
        return self.implementations.get(implementation, implementation)

    def _cells(self, grid: Grid, labels: Labels, rest: Mapping[str, Any]) -> Iterator[str]:
        said = {**grid.says, **grid.row(labels)}
        for column in grid.columns.values():
            if isinstance(column, Remark):
                yield ""
            elif isinstance(column, Best):
                yield self._best({**said, **column.says}, column, rest)
            elif not isinstance(column, SpreadColumn):
                yield self._text({**said, **column}, rest)
                if isinstance(grid.columns.get(column.get("std", "")), SpreadColumn):
                    yield self._spread({**said, **column}, rest)

    def _measured(self, says: Says, rest: Mapping[str, Any], implementation: str, metric: str) -> Measurement | None:
        case = Case(**{**rest, **_said_fields(says)})
        modes = (says["mode"],) if says.get("mode") else ("fwd", "fwd_bwd", "train", "decode", "prefill", None)
        found = (self.found.get((case, self.own(implementation), mode, metric)) for mode in modes)
        return next((m for m in found if m), None)

    def _text(self, says: Says, rest: Mapping[str, Any]) -> str:
        metric = says["metric"]
        if metric in RATIO_OF and "baseline" in says:
            ratio = self._ratio(says, rest, says["implementation"])
            percent = metric == "memory_saved_percent"
            return "—" if ratio is None else _format(metric, 100 * (1 - 1 / ratio) if percent else ratio, says)
        measurement = self._measured(says, rest, says["implementation"], metric)
        if measurement is None:
            return ""
        if measurement.value is None:
            return WORDS.get(measurement.status, str(measurement.status))
        mean = measurement.mean if "std" in says else None  # a column with a spread is one of means
        return _format(metric, measurement.value if mean is None else mean, says)

    def _spread(self, says: Says, rest: Mapping[str, Any]) -> str:
        measurement = self._measured(says, rest, says["implementation"], says["metric"])
        return _format(says["metric"], measurement.std, says) if measurement and measurement.std is not None else ""

    def _ratio(self, says: Says, rest: Mapping[str, Any], implementation: str) -> float | None:
        """Return baseline over implementation; None unless both are there."""
        metric = RATIO_OF[says["metric"]][0]
        ours = self._measured(says, rest, implementation, metric)
        base = self._measured(says, rest, says["baseline"], metric)
        return base.value / ours.value if base and ours and base.value and ours.value else None

    def _best(self, says: Says, best: Best, rest: Mapping[str, Any]) -> str:
        ratios = {name: self._ratio(says, rest, implementation) for name, implementation in best.names.items()}
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if not known:
            return "—"
        name = max(known, key=known.__getitem__)
        return f"**{known[name]:.2f}x** ({name})"


def _timing(measurements: Sequence[Measurement]) -> str | None:
    """Return device time where the run has it, else plain calls; the two are never mixed."""
    latencies = [m for m in measurements if m.metric == "latency_ms"]
    timed = {m.timing for m in latencies if m.status is Status.OK} or {m.timing for m in latencies}
    return next((timing for timing in ("kernel", "eager") if timing in timed), None)


def _said_fields(says: Says) -> dict[str, Any]:
    fields = {name: says[name] for name in CASE_FIELDS if says.get(name) is not None}
    if "seqlen" in says:
        fields |= {"seqlen_q": says["seqlen"], "seqlen_k": says["seqlen"]}
    if "head_dim" in says:
        fields.setdefault("head_dim_v", says["head_dim"])
    return fields


def _rest(case: Case, grid: Grid, labels: Labels) -> tuple[tuple[str, Any], ...]:
    column = next((says for says in grid.columns.values() if isinstance(says, Mapping)), {})
    said = _said_fields({**grid.says, **grid.row(labels), **column})
    return tuple((name, getattr(case, name)) for name in CASE_FIELDS if name not in said)


def _order(label: str) -> tuple[int, float, str]:
    number = label.replace(",", "")
    return (0, float(number), "") if number.isdigit() else (1, 0.0, label)


def _format(metric: str, value: float, says: Says) -> str:
    if "format" in says:
        return says["format"].format(value)
    if metric.endswith("_mb"):
        unit = says.get("unit")
        return f"{value / MIB[unit]:.1f}" if unit else f"{value:.1f} MB"
    return _FORMATS.get(metric, "{:.4g}").format(value)
