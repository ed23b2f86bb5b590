"""The numbers of your own run for the cells of a published layout."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from results.levels import level_of
from results.levels.model_table import models
from results.metrics import RATIO_OF
from results.records import CASE_FIELDS, Case, Measurement, Status
from results.reports.layout import EXTRAPOLATED, MIB, Best, Facts, Grid, Labels, Remark, SpreadColumn

WORDS = {Status.OOM: "OOM", Status.OUT_OF_RESOURCES: "OOR", Status.UNSUPPORTED: "N/A", Status.SKIPPED: "—"}
_LONGEST_NOTE = 60  # longer reasons for a missing number are left out of the cell
_TIMINGS = {"kernel": "device time, launches excluded", "eager": "plain calls, host overhead included"}
_FORMATS = {
    "latency_ms": "{:.4f}",
    "memory_per_token_mb": "{:.3g}",
    "speedup": "{:.1f}x",
    "memory_reduction": "{:.1f}x",
    "memory_saved_percent": "{:.0f}%",
}
_ALL_MODES = ("fwd", "fwd_bwd", "train", "decode", "prefill", None)
Ran = Mapping[tuple[str, Case], str]
Rest = Mapping[str, Any]  # fields of a case that a table does not give
Found = Mapping[tuple, Measurement]


class OwnNumbers:
    """The measurements of one run, looked up by the facts of a cell."""

    def __init__(
        self,
        measurements: Sequence[Measurement],
        implementations: Mapping[str, str],
        declared: Mapping[str, Mapping[str, Any]] | None = None,
        ran: Ran | None = None,
        printed: Collection[Case] = (),
    ) -> None:
        self.declared = declared or {}  # facts that implementations declare, by name
        self.ran = ran or {}  # the run with a time, by implementation and case; from all chosen runs
        self.printed = printed  # cases that the report prints
        there = {m.implementation for m in measurements}
        self.implementations = {theirs: own if own in there else theirs for theirs, own in implementations.items()}
        self.timings = _timings(measurements)
        timed = [m for m in measurements if m.timing in (None, self.timings.get(m.mode))]
        named = [replace(m, case=_as_named(m.case)) if level_of(m.case).whole_model else m for m in timed]
        kept = [m for m in named if is_usual(m.case)]
        self.measurements = [m for m in kept if EXTRAPOLATED not in m.flags]
        self.found = {_key(m): m for m in self.measurements}
        self.timed = dict.fromkeys((m.case, m.mode) for m in self.measurements if m.metric == "latency_ms")
        self.extrapolated = {_key(m): m for m in kept if EXTRAPOLATED in m.flags}

    def explanation(self) -> str:
        """Return the timing and the implementations of the tables, and a legend of their words."""
        shown = {m.implementation for m in self.measurements}
        pairs = [f"{theirs} is {own}" for theirs, own in self.implementations.items() if own in shown and theirs != own]
        parts = [f"Timing: {self._timing_words()}", *pairs]
        words = "OOM is out of device memory, OOR out of shared memory or registers, N/A unsupported, — no number"
        words += ", ≈ extrapolated from two depths" * bool(self.extrapolated)
        return "; ".join(parts) + f".\n\n{words}."

    def settings(self) -> str:
        """Return the case fields that all numbers share, without fields that say that a feature is absent."""
        shown = [m for m in self.measurements if m.implementation in self.implementations.values() and m.case.seqlen_q]
        values = {name: {getattr(m.case, name) for m in shown} for name in CASE_FIELDS}
        shared = {name: next(iter(found)) for name, found in values.items() if len(found) == 1}
        return ", ".join(f"{name}={value}" for name, value in shared.items() if value or value is False)

    def tables(self, grid: Grid) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield the rows of a table for each setting of the case fields that its labels and columns do not give."""
        settings: dict[tuple[tuple[str, Any], ...], dict[Labels, None]] = {}
        for measurement in self._near(grid):
            for labels in self._labels(grid, measurement):
                settings.setdefault(_rest(measurement.case, grid, labels), {})[labels] = None
        for rest, found in settings.items():
            ordered = (
                sorted(found, key=lambda labels: [_order(labels[at]) for at in grid.order]) if grid.name else found
            )
            rows = [[*labels, *self._cells(grid, labels, dict(rest))] for labels in ordered]
            yield ", ".join(f"{name}={value}" for name, value in rest if _is_telling(name, value)), rows

    def _near(self, grid: Grid) -> list[Measurement]:
        """Return the measurements that fit the facts of the whole table; facts of rows and columns are not checked."""
        columns = [column for column in grid.columns.values() if isinstance(column, Mapping)]
        moving = {"seqlen", "head_dim", *(name for column in columns for name in column)}
        facts = {**grid.facts, **grid.own}
        said = [(name, facts[name]) for name in CASE_FIELDS if facts.get(name) is not None and name not in moving]
        return [m for m in self.measurements if all(getattr(m.case, name) == value for name, value in said)]

    def _labels(self, grid: Grid, measurement: Measurement) -> Iterator[Labels]:
        places = grid.own.get("places", {}).values()
        named = {*self.implementations.values(), *(each for names in places for each in names)}
        if measurement.implementation not in named:
            return
        candidates = (grid.name(measurement),) if grid.name else grid.rows
        for labels in candidates:
            if any(self._fits(measurement, facts) for facts in all_facts(grid, labels)):
                yield labels

    def _fits(self, measurement: Measurement, facts: Facts) -> bool:
        case = case_fields(facts)
        return (
            all(getattr(measurement.case, name) == value for name, value in case.items())
            and measurement.implementation in self.candidates(facts["implementation"], facts)
            and measurement.metric == own_metric(facts)
            and facts.get("mode") in (None, measurement.mode)
        )

    def candidates(self, implementation: str, facts: Facts) -> tuple[str, ...]:
        """Return the own implementations that can replace a published one in a cell, best first."""
        return (*facts.get("places", {}).get(implementation, ()), self.own(implementation))

    def own(self, implementation: str) -> str:
        """Return the own implementation that replaces a published one."""
        return self.implementations.get(implementation, implementation)

    def _cells(self, grid: Grid, labels: Labels, rest: Rest) -> Iterator[str]:
        fastest = self._fastest(grid, labels, rest)
        for name, column in grid.columns.items():
            if isinstance(column, Remark):
                yield column.own(own_facts(grid, labels, {})) if column.own else ""
            elif isinstance(column, Best):
                yield self._best(own_facts(grid, labels, column.facts), column, rest)
            elif not isinstance(column, SpreadColumn):
                facts = own_facts(grid, labels, column)
                text = self._text(facts, rest)
                yield f"**{text}**" if name == fastest else text
                if isinstance(grid.columns.get(column.get("std", "")), SpreadColumn):
                    yield self._spread(facts, rest)

    def _fastest(self, grid: Grid, labels: Labels, rest: Rest) -> str | None:
        """Return the column of the shortest time, which is bold in tables with a column of the best ratio."""
        if not any(isinstance(column, Best) for column in grid.columns.values()):
            return None
        times = {}
        for name, column in grid.columns.items():
            if isinstance(column, Mapping) and (facts := own_facts(grid, labels, column))["metric"] == "latency_ms":
                measured = self._number(facts, rest, facts["implementation"], "latency_ms")
                if measured and measured.value:
                    times[name] = measured.value
        return min(times, key=times.__getitem__, default=None)

    def _number(
        self, facts: Facts, rest: Rest, implementation: str, metric: str, found: Found | None = None
    ) -> Measurement | None:
        case = Case(**{**rest, **case_fields(facts)})
        modes = (facts["mode"],) if facts.get("mode") else _ALL_MODES
        tried = [
            m
            for own in self.candidates(implementation, facts)
            for mode in modes
            if (m := (self.found if found is None else found).get((case, own, mode, metric)))
        ]
        return next((m for m in tried if m.value is not None), tried[0] if tried else None)

    def _text(self, facts: Facts, rest: Rest) -> str:
        metric = facts.get("own_metric", facts["metric"])
        if metric in RATIO_OF and "baseline" in facts:
            ratio = self._ratio(facts, rest, facts["implementation"])
            percent = metric == "memory_saved_percent"
            if ratio is None:
                return "—"
            text = _format(metric, 100 * (1 - 1 / ratio) if percent else ratio, facts)
            shortest, least = facts.get("bold", (math.inf, math.inf))
            return f"**{text}**" if facts["seqlen"] >= shortest and ratio >= least else text
        measurement = self._number(facts, rest, facts["implementation"], metric)
        guessed = self._number(facts, rest, facts["implementation"], metric, self.extrapolated)
        if guessed and guessed.value is not None and (measurement is None or measurement.value is None):
            return f"≈ {_format(metric, guessed.value, facts)}"
        if measurement is None:
            return ""
        if measurement.value is None:
            return _why_not(measurement)
        mean = measurement.mean if "std" in facts else None  # columns with a spread print means
        return _format(metric, measurement.value if mean is None else mean, facts)

    def _spread(self, facts: Facts, rest: Rest) -> str:
        measurement = self._number(facts, rest, facts["implementation"], facts["metric"])
        return _format(facts["metric"], measurement.std, facts) if measurement and measurement.std is not None else ""

    def _ratio(self, facts: Facts, rest: Rest, implementation: str) -> float | None:
        """Return baseline over implementation; None if one of them has no number."""
        metric = RATIO_OF[facts["metric"]][0]
        ours = self._number(facts, rest, implementation, metric)
        base = self._number(facts, rest, facts["baseline"], metric)
        return base.value / ours.value if base and ours and base.value and ours.value else None

    def _best(self, facts: Facts, best: Best, rest: Rest) -> str:
        ratios = {name: self._ratio(facts, rest, implementation) for name, implementation in best.names.items()}
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if not known:
            return "—"
        name = max(known, key=known.__getitem__)
        return f"**{known[name]:.2f}x** ({name})"

    def _timing_words(self) -> str:
        """Return the timing, by mode if the modes differ."""
        modes: dict[str | None, list[str]] = {}
        for mode, timing in self.timings.items():
            modes.setdefault(timing, []).append(mode or "mode not stated")
        words = {timing: f"{timing}, {_TIMINGS[timing]}" if timing else "not stated" for timing in modes}
        if len(modes) < 2:
            return next(iter(words.values()), "not stated")
        return ", ".join(f"{' and '.join(modes[timing])} {words[timing]}" for timing in modes)


def _timings(measurements: Sequence[Measurement]) -> dict[str | None, str | None]:
    """Return the timing of each mode: device time if the run has it, else plain calls. The two are never mixed."""
    found: dict[str | None, str | None] = {}
    for mode in dict.fromkeys(m.mode for m in measurements if m.metric == "latency_ms"):
        latencies = [m for m in measurements if m.metric == "latency_ms" and m.mode == mode]
        timed = {m.timing for m in latencies if m.status is Status.OK} or {m.timing for m in latencies}
        found[mode] = next((timing for timing in ("kernel", "eager") if timing in timed), None)
    return found


def _key(measurement: Measurement) -> tuple:
    return measurement.case, measurement.implementation, measurement.mode, measurement.metric


def _as_named(case: Case) -> Case:
    """Return a model's case without the sizes that its name implies, so that one table can hold several models."""
    known = models().get(case.subject or "")
    if known is None:
        return case
    depth = None if case.num_layers == known.layers else case.num_layers
    sizes = dict.fromkeys(("num_heads", "num_kv_heads", "head_dim", "head_dim_v", "window_size"))
    return replace(case, num_layers=depth, **sizes)


def is_usual(case: Case) -> bool:
    """Return whether a case has no window, no pages, plain data and, for the operator, as many key heads as heads.

    Reports do not state these fields, so numbers of other cases are not shown in their tables.
    """
    plain = not case.window_size and not case.page_size and case.inputs in (None, "normal")
    return plain and (not level_of(case).one_attention or case.num_kv_heads == case.num_heads)


def _is_telling(name: str, value: Any) -> bool:
    """Return whether a field of a setting is worth showing: the fields of usual cases are not."""
    unsaid = ("subject", "num_kv_heads", "window_size", "page_size", "inputs")
    return value is not None and name not in unsaid and (name, value) != ("latent_dim", 0)


def own_metric(facts: Facts) -> str:
    """Return the metric that an own cell needs. A ratio needs the metric of its two numbers."""
    metric = facts.get("own_metric", facts["metric"])
    return RATIO_OF[metric][0] if metric in RATIO_OF and "baseline" in facts else metric


def own_facts(grid: Grid, labels: Labels, column: Facts) -> Facts:
    """Return the facts of an own cell."""
    return {**grid.facts, **grid.row(labels), **column, **grid.own}


def _why_not(measurement: Measurement) -> str:
    word = WORDS.get(measurement.status, str(measurement.status))
    note = measurement.note or ""
    return f"{word} ({note})" if measurement.status is Status.SKIPPED and 0 < len(note) <= _LONGEST_NOTE else word


def own_names(facts: Facts, implementations: Mapping[str, str]) -> Iterator[str]:
    """Yield the own implementations that can replace the baseline and the implementation of a cell."""
    places = facts.get("places", {})
    for name in (facts.get("baseline"), facts.get("implementation")):
        if name:
            yield from places.get(name) or (implementations.get(name, name),)


def all_facts(grid: Grid, labels: Labels) -> Iterator[Facts]:
    """Yield the facts of each own cell of a row that has a number."""
    return (own_facts(grid, labels, column) for column in grid.columns.values() if isinstance(column, Mapping))


def case_fields(facts: Facts) -> dict[str, Any]:
    """Return the case fields of a cell. `seqlen` gives both lengths, and head_dim gives head_dim_v too."""
    fields: dict[str, Any] = {}
    if "seqlen" in facts:
        fields |= {"seqlen_q": facts["seqlen"], "seqlen_k": facts["seqlen"]}
    fields |= {name: facts[name] for name in CASE_FIELDS if facts.get(name) is not None}
    if "head_dim" in facts:
        fields.setdefault("head_dim_v", facts["head_dim"])
    return fields


def _rest(case: Case, grid: Grid, labels: Labels) -> tuple[tuple[str, Any], ...]:
    column = next((facts for facts in grid.columns.values() if isinstance(facts, Mapping)), {})
    said = case_fields(own_facts(grid, labels, column))
    return tuple((name, getattr(case, name)) for name in CASE_FIELDS if name not in said)


def _order(label: str) -> tuple[int, float, str]:
    number = label.replace(",", "").removesuffix("K")
    return (0, float(number) * (1024 if label.endswith("K") else 1), "") if number.isdigit() else (1, 0.0, label)


def _format(metric: str, value: float, facts: Facts) -> str:
    if "format" in facts:
        return facts["format"].format(value)
    if metric.endswith("_mb") and metric not in _FORMATS:
        unit = facts.get("unit")
        return f"{value / MIB[unit]:.1f}" if unit else f"{value:.1f} MB"
    return _FORMATS.get(metric, "{:.4g}").format(value)
