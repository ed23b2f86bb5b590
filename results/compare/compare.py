"""Compare two runs or two implementations: what changed, a verdict for every cell, the mean over them.

A cell is a case, mode, timing and implementation. Cells are compared only where both sides say the same case to the
last field, and kernel time never with eager time. Regressions come first: numbers that are gone, then slower ones.
Remarks say what to know of the comparison as a whole: its clocks, and the machine as it shows in what did not change.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from results.compare import between_runs, verdicts
from results.derive import geometric_mean
from results.records import CASE_FIELDS, Case, Measurement, Run, case_to_json

LOST, GAINED = "LOST", "GAINED"  # a number that only the first, or only the second, has; both were tried
HOST_TIMING = "eager"  # moves with the host, and so between two processes
COMPARED = ("latency_ms", "throttled_latency_ms")  # the metrics that a comparison looks at
ORDER = (LOST, "SLOWER", "UNCLEAR", "FASTER", GAINED, "SAME")
# Fields of a run that can explain a difference, most likely first.
FACTS = (
    "gpu_name", "gpu_uuid", "device_type", "sm_count", "gpu_memory_mb", "power_limit_w", "cpu", "host",
    "driver", "cuda", "cudnn", "torch", "triton", "python", "os",
    "kernel_hash", "git_commit", "git_dirty", "tf32", "protocol", "seed",
)  # fmt: skip
Key = tuple[Case, str | None, str | None, str | None]  # case, mode, timing, implementation
_CONTROLS = 3  # cells that can speak for the machine
_BY_CHANCE = 0.02  # share of cells; twice the share expected in an A/A test


@dataclass(frozen=True)
class Side:
    """A run, or one implementation of it."""

    run: Run
    measurements: Sequence[Measurement]
    implementation: str | None = None

    @property
    def name(self) -> str:
        """RUN or RUN/IMPLEMENTATION."""
        return f"{self.run.run_id}/{self.implementation}" if self.implementation else self.run.run_id


@dataclass(frozen=True)
class ChangedFact:
    """A fact of the runs that differs, or that one of them does not say."""

    fact: str
    first: Any
    second: Any


@dataclass(frozen=True)
class ComparedCell:
    """A cell that both sides have tried."""

    case: Case
    implementation: str  # two implementations: "torch_naive -> triton_fa2"
    mode: str | None
    timing: str | None
    outcome: str  # one of ORDER
    first: Measurement
    second: Measurement
    judgement: verdicts.Judgement | None  # None where a number is missing
    reason: str

    @property
    def time_ratio(self) -> float | None:
        """Return the first latency over the second; above 1 the second is faster."""
        return self.first.value / self.second.value if self.first.value and self.second.value else None

    @property
    def cycles_ratio(self) -> float | None:
        """Return the speedup in cycles of the SM clock; None where both ran at one clock or it is not known."""
        return self.judgement.speedup if self.judgement and self.judgement.clocks else None


@dataclass(frozen=True)
class TimingCoverage:
    """How many cells of one timing either side has tried, each counted once."""

    timing: str | None
    both: int  # with a number on both sides
    lost: int
    gained: int
    neither: int  # tried by both, without a number on either side
    only_first: int
    only_second: int


@dataclass(frozen=True)
class Mean:
    """The geometric mean of the speedups of some cells, and how far it reaches."""

    timing: str | None
    implementation: str | None  # None: all
    mode: str | None  # None: all
    speedup: float | None
    compared: int  # cells with a number on both sides
    tried: int  # cells that either side has tried
    outcomes: dict[str, int]
    detectable: float | None  # median of the smallest changes that its cells could have shown


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The second side against the first."""

    first: str
    second: str
    same_run: bool
    changes: tuple[ChangedFact, ...]
    not_said: tuple[str, ...] = ()  # facts that neither run says
    means: tuple[Mean, ...]  # for each timing over all, then by implementation and mode
    cells: tuple[ComparedCell, ...]  # regressions first
    only_first: int = 0  # cells that the other side has not tried
    only_second: int = 0
    coverage: tuple[TimingCoverage, ...]  # by timing, in the order of the means
    remarks: tuple[str, ...]


def compare(first: Side, second: Side) -> Comparison:
    """Judge every cell that both sides have tried; nothing is averaged over different timings."""
    before, after = latencies_of(first), latencies_of(second)
    pair = f"{first.implementation} -> {second.implementation}" if first.implementation else None
    protocol = first.run.protocol if first.run.protocol == second.run.protocol else None
    same_run = first.run.run_id == second.run.run_id
    shared = [(before[key], after[key]) for key in before if key in after]
    controls = not same_run and not pair and between_runs.speak_for_the_machine(first.run, second.run)
    cells = [cell for cell in _judged(shared, pair, protocol, one_process=same_run, controls=controls) if cell]
    if not same_run and first.run.gpu_name == second.run.gpu_name:
        cells = [_decided(cell, first.run, second.run) for cell in cells]
    cells.sort(key=urgency)
    tried = Counter((m.timing, pair or m.implementation, m.mode) for m in (before | after).values())
    parts = (before.keys() & after.keys(), before.keys() - after.keys(), after.keys() - before.keys())
    return Comparison(
        first=first.name,
        second=second.name,
        same_run=same_run,
        changes=tuple(_changes(first, second)),
        not_said=tuple(fact for fact in FACTS if getattr(first.run, fact) is getattr(second.run, fact) is None),
        means=tuple(geometric_means(cells, tried)),
        cells=tuple(cells),
        only_first=len(parts[1]),
        only_second=len(parts[2]),
        coverage=tuple(coverage(cells, [Counter(key[2] for key in keys) for keys in parts])),
        remarks=(*_remarks(cells, first.run, second.run), *([] if shared else [_why_nothing_is_shared(before, after)])),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data: the samples stay in the store, the numbers they gave are here."""
    record = {name: value for name, value in vars(comparison).items() if name != "cells"}
    record |= {name: [asdict(each) for each in record[name]] for name in ("changes", "means", "coverage")}
    record["cells"] = [_cell_json(cell) for cell in comparison.cells]
    return record


def latencies_of(side: Side) -> dict[Key, Measurement]:
    """Return the latencies by cell; of a number printed twice the first."""
    found: dict[Key, Measurement] = {}
    for m in side.measurements:
        if m.metric == "latency_ms" and side.implementation in (None, m.implementation):
            name = None if side.implementation else m.implementation
            # Journals from before inputs were recorded say none where they are normal.
            case = replace(m.case, inputs=None) if m.case.inputs == "normal" else m.case
            found.setdefault((case, m.mode, m.timing, name), m)
    return found


def _judged(
    shared: Sequence[tuple[Measurement, Measurement]],
    pair: str | None,
    protocol: str | None,
    *,
    one_process: bool,
    controls: bool,
) -> Iterable[ComparedCell | None]:
    """Judge each cell with the usual spread of its timing, because a few rounds say little about their own spread."""
    paired = one_process and verdicts.sampled_in_rounds(protocol)
    for timing in dict.fromkeys(first.timing for first, _ in shared):
        those = [both for both in shared if both[0].timing == timing]
        known = [(first, second) for first, second in those if None not in (first.value, second.value)]
        usual = verdicts.usual_spread(known, paired=paired)
        found = [verdicts.judge(a, b, protocol=protocol, paired=paired, like=usual.near(a.value)) for a, b in known]
        if not one_process:
            apart = _apart(known, found, by_host=timing == HOST_TIMING, controls=controls)
            found = [
                verdicts.judge(a, b, protocol=protocol, like=usual.near(a.value), apart=beyond)
                for (a, b), beyond in zip(known, apart, strict=True)
            ]
        judged = iter(found)
        for first, second in those:
            found_of_cell = None if None in (first.value, second.value) else next(judged)
            yield compared_cell(first, second, found_of_cell, pair)


def _apart(
    known: Sequence[tuple[Measurement, Measurement]],
    found: Sequence[verdicts.Judgement],
    *,
    by_host: bool,
    controls: bool,
) -> list[between_runs.ProcessShift | None]:
    """Return by what two processes differ in each cell beyond its rounds; None where a cell has no interval.

    `controls` says whether PyTorch's own kernels can tell.
    """
    errors = [verdicts.standard_error(judgement) for judgement in found]
    shifts = [
        between_runs.Shift((a.implementation, a.mode), math.log(judgement.speedup), error, math.sqrt(a.value * b.value))
        for (a, b), judgement, error in zip(known, found, errors, strict=True)
        if error is not None
    ]
    unchanged = [shift for shift in shifts if controls and between_runs.is_control(shift.kind[0])]
    spreads = iter(
        between_runs.beyond_rounds(shifts, unchanged) if by_host else between_runs.beyond_controls(shifts, unchanged)
    )
    return [None if error is None else next(spreads) for error in errors]


def compared_cell(
    first: Measurement, second: Measurement, found: verdicts.Judgement | None, pair: str | None = None
) -> ComparedCell | None:
    """Return the judged cell, of `pair` where two implementations are compared; None if neither side has a number."""
    if found:
        outcome, reason = str(found.verdict), found.reason
    elif first.value is not None:
        outcome, reason = LOST, _why(second)
    elif second.value is not None:
        outcome, reason = GAINED, f"before: {_why(first)}"
    else:
        return None
    name = pair or second.implementation
    return ComparedCell(second.case, name, second.mode, second.timing, outcome, first, second, found, reason)


def _decided(cell: ComparedCell, first: Run, second: Run) -> ComparedCell:
    """Return the cell; UNCLEAR if only unchanged kernels could tell its change from the machine's and none do."""
    if not cell.judgement or not cell.judgement.unshown or cell.judgement.doubt is verdicts.Doubt.CLOCK:
        return cell
    found = verdicts.undecided(cell.judgement, deciding_command(first, second))
    return replace(cell, outcome=str(found.verdict), judgement=found, reason=found.reason)


def deciding_command(first: Run, second: Run) -> str:
    """Return the command that measures what differs between two runs in one sweep."""
    sweep = (second.sweep or {}).get("name") or "SWEEP"
    if first.torch != second.torch:
        return f"python -m runner run {sweep} --against-python PYTHON_WITH_TORCH_{first.torch or 'OF_THE_FIRST'}"
    return f"python -m runner run {sweep} --against {first.run_id}"


def _why(measurement: Measurement) -> str:
    return f"{measurement.status}: {measurement.note}" if measurement.note else str(measurement.status)


def urgency(cell: ComparedCell) -> tuple:
    """Return what cells are sorted by: regressions first, then by speedup."""
    speedup = cell.judgement.speedup if cell.judgement else None
    case = tuple(str(value).rjust(12) for value in case_to_json(cell.case).values())
    return ORDER.index(cell.outcome), speedup or 0.0, cell.timing or "", cell.implementation, case, cell.mode or ""


def _changes(first: Side, second: Side) -> Iterable[ChangedFact]:
    """Yield what the records say differs, then what was measured of the machine and differs by more than the band."""
    for fact in FACTS:
        before, after = getattr(first.run, fact), getattr(second.run, fact)
        if before != after:
            yield ChangedFact(fact, before, after)
    machines = _machine(first), _machine(second)
    for fact in machines[0] if first.run.run_id != second.run.run_id else ():
        before, after = (machine.get(fact) for machine in machines)
        if before and after and abs(math.log(before / after)) > math.log1p(verdicts.BAND):
            yield ChangedFact(fact, round(before, 1), round(after, 1))


def _machine(side: Side) -> dict[str, float | None]:
    """Return the clock of its device times, and what the machine itself reached at the start of the run."""
    clocks = [m.sm_clock_mhz for m in side.measurements if m.timing == "kernel" and m.sm_clock_mhz]
    peaks = {f"measured_tflops {name}": rate for name, rate in (side.run.measured_tflops or {}).items()}
    clock = statistics.median(clocks) if clocks else None
    return {"sm_clock_mhz, median": clock, **peaks, "measured_gbs": side.run.measured_gbs}


def geometric_means(cells: Sequence[ComparedCell], tried: Counter) -> Iterable[Mean]:
    """Yield the means, device time first; an implementation and mode that the sides do not share has none.

    `tried` counts the cells that either side has tried by timing, implementation and mode.
    """
    keys = sorted(tried, key=lambda key: (key[0] == HOST_TIMING, *(part or "" for part in key)))
    for timing in dict.fromkeys(key[0] for key in keys):
        of_timing = [key for key in keys if key[0] == timing]
        yield _mean(timing, None, None, [c for c in cells if c.timing == timing], sum(tried[key] for key in of_timing))
        for key in of_timing if len(of_timing) > 1 else ():
            chosen = [c for c in cells if (c.timing, c.implementation, c.mode) == key]
            if chosen:
                name, mode = key[1:]
                yield _mean(timing, name, mode, chosen, tried[key])


def coverage(cells: Sequence[ComparedCell], tried: Sequence[Counter[str | None]]) -> Iterable[TimingCoverage]:
    """Yield the coverage of each timing; `tried` counts the cells of both sides, of the first and of the second."""
    for timing in sorted(set().union(*tried), key=lambda name: (name == HOST_TIMING, name or "")):
        outcomes = Counter(cell.outcome for cell in cells if cell.timing == timing)
        lost, gained, listed = outcomes[LOST], outcomes[GAINED], outcomes.total()
        shared, first, second = (count[timing] for count in tried)
        yield TimingCoverage(timing, listed - lost - gained, lost, gained, shared - listed, first, second)


def _mean(timing: str | None, name: str | None, mode: str | None, cells: Sequence[ComparedCell], tried: int) -> Mean:
    speedups = [c.judgement.speedup for c in cells if c.judgement and c.judgement.speedup]
    seen = [c.judgement.detectable for c in cells if c.judgement and c.judgement.detectable is not None]
    outcomes = Counter(cell.outcome for cell in cells)
    return Mean(
        timing,
        name,
        mode,
        speedup=geometric_mean(speedups),
        compared=len(speedups),
        tried=tried,
        outcomes={outcome: outcomes[outcome] for outcome in ORDER if outcomes[outcome]},
        detectable=statistics.median(seen) if seen else None,
    )


def _cell_json(cell: ComparedCell) -> dict[str, Any]:
    record = {**case_to_json(cell.case), "implementation": cell.implementation, "mode": cell.mode}
    record |= {"timing": cell.timing, "outcome": cell.outcome}
    for name, side in (("first", cell.first), ("second", cell.second)):
        record[f"{name}_ms"] = side.value
        record[f"{name}_status"] = str(side.status)
        record[f"{name}_id"] = side.measurement_id
    found = asdict(cell.judgement) if cell.judgement else {}
    for name in ("speedup", "low", "high", "detectable", "basis", "clocks", "apart"):
        record[name] = found.get(name)
    return record | {"reason": cell.reason}


def _remarks(cells: Sequence[ComparedCell], first: Run, second: Run) -> Iterable[str]:
    """Yield sentences about the comparison as a whole, the most general first."""
    judged = [cell.judgement for cell in cells if cell.judgement]
    if judged:
        in_cycles = sum(found.clocks is not None for found in judged)
        if in_cycles:
            yield f"{in_cycles} of {len(judged)} pairs ran at different SM clocks and are compared in cycles."
        if first.run_id != second.run_id:
            cards = first.gpu_uuid, second.gpu_uuid
            if first.gpu_name == second.gpu_name and all(cards) and cards[0] != cards[1]:
                named = f"{first.gpu_name} cards ({cards[0]} and {cards[1]})"
                yield f"Two different {named}: power draw and clocks may differ."
            for timing in dict.fromkeys(cell.timing for cell in cells if cell.judgement):
                of_timing = [cell.judgement for cell in cells if cell.timing == timing and cell.judgement]
                yield _apart_in_words(timing, of_timing, first, second)
            yield from _control(cells, first, second)


def _apart_in_words(timing: str | None, judged: Sequence[verdicts.Judgement], first: Run, second: Run) -> str:
    """Return what two runs of the same thing differ by in that timing, and whose word it is."""
    apart = [found.apart for found in judged if found.apart is not None]
    which = f"{timing} times" if timing else "these times"
    if not apart:
        return f"The intervals of {which} do not include what two runs of the same code differ by; a third run tells."
    spread = f"by {100 * statistics.median(apart):.1f} %"
    if timing == "eager":
        return f"Eager times vary with the host: {spread} between these two runs; the intervals include that."
    if any(found.unshown for found in judged):
        unclear = "what is smaller" if first.gpu_name != second.gpu_name else "every verdict on them"
        return (
            f"No unchanged kernels are in both runs, at least {between_runs.LEAST}, so the intervals include what two "
            f"processes usually vary {spread} in {which}; {unclear} is UNCLEAR. "
            f"`{deciding_command(first, second)}` measures both in one run and decides."
        )
    return f"PyTorch's unchanged kernels vary {spread} between these two runs; the intervals include that."


def _control(cells: Sequence[ComparedCell], first: Run, second: Run) -> Iterable[str]:
    """Yield where PyTorch's own kernels moved, which in one version on one GPU did not change.

    They count as unmoved within the band and two standard errors of their mean, and if few are called different.
    """
    if not between_runs.speak_for_the_machine(first, second):
        return
    for timing in dict.fromkeys(cell.timing for cell in cells):
        controls = controls_of(cells, timing)
        if len(controls) < _CONTROLS:
            continue
        logs = [math.log(cell.judgement.speedup) for cell in controls]
        mean, doubt = math.exp(statistics.fmean(logs)), 2 * statistics.stdev(logs) / math.sqrt(len(logs))
        different = sum(cell.outcome in ("FASTER", "SLOWER") for cell in controls)
        moved = abs(math.log(mean)) - doubt > math.log1p(verdicts.BAND)
        if moved or different > max(_CONTROLS, _BY_CHANCE * len(controls)):
            yield (
                f"The machine differed: PyTorch's own kernels, the same torch {first.torch} in both runs, are "
                f"{mean:.3f}× as fast in {timing or 'unstated'} time over {len(controls)} shapes, and {different} of "
                "those are called different. The other speedups contain that too."
            )


def controls_of(cells: Sequence[ComparedCell], timing: str | None) -> list[ComparedCell]:
    """Return the judged cells of PyTorch's own kernels in one timing."""
    those = [cell for cell in cells if cell.timing == timing and between_runs.is_control(cell.implementation)]
    return [cell for cell in those if cell.judgement and cell.judgement.speedup]


def _why_nothing_is_shared(before: dict[Key, Measurement], after: dict[Key, Measurement]) -> str:
    """Return which fields of the case keep the sides apart, so that a report that leaves them open is understood."""
    if not before or not after:
        return f"{'The first' if not before else 'The second'} has no latency."
    values = [{name: {getattr(key[0], name) for key in side} for name in CASE_FIELDS} for side in (before, after)]
    apart = [name for name in CASE_FIELDS if not values[0][name] & values[1][name]]
    names = [{key[1:] for key in side} for side in (before, after)]
    if apart:
        said = "; ".join(f"{name} {_some(values[0][name])} and {_some(values[1][name])}" for name in apart)
        return f"No shape is in both: {said}."
    if not names[0] & names[1]:
        return f"No shape is in both: mode, timing and implementation are {_some(names[0])} and {_some(names[1])}."
    return "No shape is in both: none is the same in all its fields."


def _some(values: Iterable[Any]) -> str:
    texts = sorted("not stated" if value is None else str(value) for value in values)
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
