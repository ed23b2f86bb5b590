"""A sweep's cells over the runs of one GPU: the time in each run, and a verdict against the run before.

Runs of one sweep on one GPU belong together, independent of commit and kernels, because a history shows what changed
between them. Each cell is compared with the latest earlier run that tried it, so a sweep whose masks are run separately
has one history. Verdicts come from results.compare.compare. Standard library and records only.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.compare.compare import GAINED, LOST, ComparedCell, Key, Side, compare, latencies_of
from results.compare.verdicts import Verdict
from results.records import Case, Measurement, Run

CHANGES = (LOST, str(Verdict.SLOWER), str(Verdict.FASTER), GAINED)  # changes that are reported, in this order
REGRESSIONS = (LOST, str(Verdict.SLOWER))


@dataclass(frozen=True)
class RunChain:
    """The runs of one sweep on one GPU, oldest first."""

    sweep: str
    gpu: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class HistoryPoint:
    """A cell in one run."""

    run: Run
    measurement: Measurement
    against: ComparedCell | None  # the run before; None in the first run, or where neither has a number

    @property
    def outcome(self) -> str | None:
        """Return the verdict against the run before, LOST or GAINED; None without one."""
        return self.against.outcome if self.against else None


@dataclass(frozen=True)
class CellHistory:
    """A cell through all runs that tried it, oldest first."""

    case: Case
    mode: str | None
    timing: str | None
    implementation: str
    points: tuple[HistoryPoint, ...]

    @property
    def regressed(self) -> bool:
        """Tell whether some run is slower than the one before, or lost the number."""
        return any(point.outcome in REGRESSIONS for point in self.points)


def chains(runs: Iterable[Run]) -> list[RunChain]:
    """Return the sweeps that were run more than once on a GPU, the one with the newest run first."""
    found: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        sweep = (run.sweep or {}).get("name")
        if sweep and run.gpu_name and run.created:
            found[sweep, run.gpu_name].append(run)
    made = [
        RunChain(sweep, gpu, tuple(sorted(those, key=lambda run: (run.created, run.run_id))))
        for (sweep, gpu), those in found.items()
        if len(those) > 1
    ]
    return sorted(made, key=lambda chain: chain.runs[-1].created, reverse=True)


def histories(runs: Sequence[tuple[Run, Sequence[Measurement]]]) -> list[CellHistory]:
    """Return the cells that two or more of the runs tried, those that regressed first; `runs` are oldest first."""
    by_run = [latencies_of(Side(run, measurements)) for run, measurements in runs]
    judged = _judged(runs, by_run)
    places: defaultdict[Key, list[int]] = defaultdict(list)
    for at, cells in enumerate(by_run):
        for key in cells:
            places[key].append(at)
    found = [
        CellHistory(
            *key, points=tuple(HistoryPoint(runs[at][0], by_run[at][key], judged.get((at, key))) for at in where)
        )
        for key, where in places.items()
        if len(where) > 1 and any(by_run[at][key].value is not None for at in where)
    ]
    return sorted(found, key=lambda history: not history.regressed)


def changes(found: Iterable[CellHistory]) -> list[tuple[CellHistory, HistoryPoint]]:
    """Return where cells became slower, faster, lost or gained, newest run first, regressions first in each."""
    told = [(history, point) for history in found for point in history.points if point.outcome in CHANGES]
    told.sort(key=lambda both: CHANGES.index(both[1].outcome))
    return sorted(told, key=lambda both: (both[1].run.created, both[1].run.run_id), reverse=True)


def _judged(
    runs: Sequence[tuple[Run, Sequence[Measurement]]], by_run: Sequence[dict[Key, Measurement]]
) -> dict[tuple[int, Key], ComparedCell]:
    """Return the verdict of each cell against the latest earlier run that tried it, by place of the run and cell.

    Two runs are compared whole, because cells together tell what the processes differ by.
    """
    latest: dict[Key, int] = {}
    found: dict[tuple[int, Key], ComparedCell] = {}
    for at, cells in enumerate(by_run):
        before: defaultdict[int, set[Key]] = defaultdict(set)
        for key in cells:
            if key in latest:
                before[latest[key]].add(key)
            latest[key] = at
        for earlier, keys in before.items():
            for cell in compare(Side(*runs[earlier]), Side(*runs[at])).cells:
                key = next(iter(latencies_of(Side(runs[at][0], [cell.second]))))
                if key in keys:
                    found[at, key] = cell
    return found
