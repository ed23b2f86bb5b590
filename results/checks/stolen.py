"""Runs whose numbers are those of another run, or within a run of another cell: equal, or multiplied by one factor."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from results.checks.finding import Found, Numbers, said
from results.grouping import grouped
from results.records import Case, Measurement, Run

DISTINCT = 6  # different samples of a cell, which two measurements cannot share by chance
_CELLS = 3  # cells of two runs with the same samples
_VALUES = 5  # cells of two runs with the same values, where a file has no samples
_SETTLED_MS = 0.1  # of shorter times two honest medians are often the same tick of the timer
_COMPILED, _COMPILED_MS = 2, 1.0  # times of compiling; shorter ones are few ticks of the host's clock
_SOURCES = {"local": 1, "upload": 2}  # may be copies of those before them; others ship
_MOST_RUNS = 20  # earliest runs that a cell is compared with, so that many copies cost no more than their rows
_EXACT = 1e-9  # relative: far above the rounding of a product, far below a tick of any timer
Pairs = Iterator[tuple[Measurement, Measurement]]  # a row and that of another run


class Elsewhere:
    """The runs that are here, found by their samples and by their values."""

    def __init__(self, runs: Sequence[tuple[Run, Sequence[Measurement]]]) -> None:
        self.runs = {run.run_id: run for run, _ in runs}
        self._place = {run_id: place for place, run_id in enumerate(self.runs)}
        earliest_first = sorted(runs, key=lambda pair: self._order(pair[0].run_id))
        self._rows = [m for _, rows in earliest_first for m in rows if m.metric in ("latency_ms", "compile_ms")]

    def is_before(self, first: str, second: str) -> bool:
        """Tell whether the first run can be the source of the second: shipped, then local runs, then by date."""
        return self._order(first) < self._order(second)

    def _order(self, run_id: str) -> tuple[int, str, int]:
        run = self.runs[run_id]
        return _SOURCES.get(run.source, 0), run.created or "", self._place[run_id]

    def _of(self, metric: str, above: float = 0.0) -> Iterator[Measurement]:
        return (m for m in self._rows if m.metric == metric and (m.value or 0.0) > above)

    @cached_property
    def by_samples(self) -> dict[tuple, dict[str, Measurement]]:
        """Return by the shape of samples the first row of each of the earliest runs that has it."""
        return _of_earliest((shape, m) for m in self._of("latency_ms") if (shape := shape_of(m.samples)))

    @cached_property
    def by_cell(self) -> dict[tuple, dict[str, Measurement]]:
        """Return the rows that are long enough by cell: case, implementation, mode and timing; of the earliest runs."""
        return _of_earliest((cell_of(m), m) for m in self._of("latency_ms", _SETTLED_MS))

    @cached_property
    def by_compile_ms(self) -> dict[tuple, dict[str, Measurement]]:
        """Return the times of compiling by implementation and value; of the earliest runs."""
        return _of_earliest(((m.implementation, m.value), m) for m in self._of("compile_ms", _COMPILED_MS))


def _of_earliest(rows: Iterable[tuple[tuple, Measurement]]) -> dict[tuple, dict[str, Measurement]]:
    found: dict[tuple, dict[str, Measurement]] = {}
    for key, m in rows:
        there = found.setdefault(key, {})
        if len(there) < _MOST_RUNS:
            there.setdefault(m.run_id, m)
    return found


def shape_of(samples: Sequence[float]) -> tuple | None:
    """Return what samples have in common with a multiple of them in any order; None if they are too few or alike."""
    if len(samples) < DISTINCT or len(set(samples)) < DISTINCT:
        return None
    ordered = sorted(samples)
    count, most = len(ordered), ordered[-1]
    return count, *(round(ordered[place * count // 4] / most, 9) for place in range(4))


def factor_of(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return by what factor the second samples are all multiplied to give the first; None if there is no such one."""
    factor = max(first) / max(second)
    pairs = zip(sorted(first), sorted(second), strict=True)
    return factor if all(abs(one - factor * other) <= _EXACT * one for one, other in pairs) else None


def same_as_run(numbers: Numbers) -> Found:
    """Yield each run whose samples or values are those of an earlier run that is here, once for each run."""
    here: Elsewhere | None = numbers.elsewhere
    for run_id, run in numbers.runs.items() if here else ():
        for kind, least, rows, pairs in _copied(numbers, run, here):
            by_run: dict[str, list[tuple[Measurement, Measurement]]] = {}
            for m, other in pairs:
                if other.run_id not in numbers.runs and here.is_before(other.run_id, run_id):
                    by_run.setdefault(other.run_id, []).append((m, other))
            other_id, same = max(by_run.items(), key=lambda item: len(item[1]), default=("", []))
            if len(same) >= least:
                factor = same[0][0].value / same[0][1].value
                times = "" if abs(factor - 1) < 1e-6 else f", multiplied by {factor:.6g}"
                facts = {"same": len(same), "count": len(rows), "kind": kind, "run": run, "other": here.runs[other_id]}
                yield said("same_as_run", *(m for m, _ in same), times=times, **facts)
                break


def _copied(numbers: Numbers, run: Run, here: Elsewhere) -> Iterator[tuple[str, int, Sequence[Measurement], Pairs]]:
    """Yield what a run may have copied: its name, the least count of cells, the rows, and those that others have."""
    rows = numbers.latencies_of(run.run_id)
    if sampled := [m for m in rows if m.samples]:
        yield "samples", _CELLS, rows, _same_samples(sampled, here)
    elif run.source != "published":
        yield "times", _VALUES, rows, _same_values(rows, here)
    compiled = [m for m in numbers.of("compile_ms") if m.run_id == run.run_id]
    there = ((m, here.by_compile_ms.get((m.implementation, m.value), {})) for m in compiled)
    yield "compile times", _COMPILED, compiled, ((m, other) for m, others in there for other in others.values())


def _same_samples(rows: Iterable[Measurement], here: Elsewhere) -> Pairs:
    for m in rows:
        for other in here.by_samples.get(shape_of(m.samples) or (), {}).values():
            if other.run_id != m.run_id and factor_of(m.samples, other.samples):
                yield m, other


def _same_values(rows: Sequence[Measurement], here: Elsewhere) -> Pairs:
    """Yield the rows whose values are the same multiple of another run's, if at least half of the shared rows are."""
    there = ((m, other) for m in rows for other in here.by_cell.get(cell_of(m), {}).values())
    elsewhere = ((m, other) for m, other in there if other.run_id != m.run_id)
    for pairs in grouped(elsewhere, lambda pair: pair[1].run_id).values():
        factors = Counter(round(m.value / other.value, 8) for m, other in pairs)
        factor, count = factors.most_common(1)[0]
        if 2 * count >= len(pairs):
            yield from ((m, other) for m, other in pairs if round(m.value / other.value, 8) == factor)


def cell_of(m: Measurement) -> tuple[Case, str, str | None, str | None]:
    """Return what two measurements of the same cell have in common."""
    return m.case, m.implementation, m.mode, m.timing
