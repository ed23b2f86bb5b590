"""The choice of runs that fill a report best. Each table gets runs of one GPU."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

from results import reports
from results.grouping import grouped
from results.records import Case
from results.reports.own import all_facts, case_fields, is_usual, own_metric, own_names
from results.reports.rendering import Runs, printed_rows
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)
_MEMORY = "peak_memory_mb"
_TIMES = ("latency_ms", "latency_extrapolated_ms")
_Tried = tuple[str, str | None, bool, bool]  # implementation, mode, whether it is memory, whether it has a value
_Filled = frozenset[tuple[int, bool]]  # cell and False if it was tried, cell and True if it has a value
_Cell = tuple[dict[str, object], set[str], str | None, bool]  # case fields, implementations, mode, whether it is memory


@dataclass(frozen=True, eq=False)
class TriedRun:
    """The latencies and memory peaks of a run: the cells that it tried, with or without a value."""

    run_id: str
    source: str
    gpu_name: str | None
    created: str
    tries: Mapping[Case, frozenset[_Tried]]

    def shows(self, names: Collection[str], shown_by: Callable[[Case], object]) -> bool:
        """Return whether the run tried one of the implementations in such a case."""
        return any(shown_by(case) and any(name in names for name, *_ in found) for case, found in self.tries.items())


def default_runs(name: str, printed: Runs, tried: Iterable[TriedRun]) -> list[str]:
    """Return the runs that fill a report best: your own runs first, then the fullest.

    Each table is filled by the fewest runs of the GPU that fills most of it: most cells with a value, then most cells
    with a reason for none. Ties between GPUs go to the one with your own runs, then to the one with the most runs. Ties
    between runs go to your own, then to the newest.
    """
    order = sorted(tried, key=lambda run: (run.source != "shipped", run.created), reverse=True)
    order = [run for run in order if run.source != "published"]
    tables = _wanted(name, printed)
    cells = [cell for found in tables.values() for cell in found]
    filled = {run: _filled(cells, run.tries) for run in order}
    chosen: dict[TriedRun, None] = {}
    begin = 0
    for found in tables.values():
        places = range(begin, begin + len(found))
        of_table = {run: frozenset(each for each in filled[run] if each[0] in places) for run in order}
        chosen |= dict.fromkeys(_best_of_one_gpu(of_table))
        begin += len(found)
    best = sorted(chosen, key=lambda run: (run.source == "shipped", -_beyond(filled[run])[1]))
    same_gpu = [run for run in order if best and run.gpu_name == best[0].gpu_name]
    names = [run.run_id for run in best]
    return names + _evidence(name, same_gpu, names)


def _best_of_one_gpu(filled: Mapping[TriedRun, _Filled]) -> list[TriedRun]:
    """Return the fewest runs that fill everything that the best GPU's runs can fill."""
    groups: dict[str | None, dict[TriedRun, _Filled]] = {}
    for run, found in filled.items():
        groups.setdefault(run.gpu_name, {})[run] = found
    best = max(groups.values(), key=_rank, default={})
    chosen: list[TriedRun] = []
    seen: _Filled = frozenset()
    while best and any(_beyond(best[run := max(best, key=lambda run: _beyond(best[run], seen))], seen)):
        chosen.append(run)
        seen |= best[run]
    return chosen


def _rank(group: Mapping[TriedRun, _Filled]) -> tuple[tuple[int, int], bool, int]:
    """Return the rank of a GPU: the cells that its runs fill, whether it has your own runs, and their number."""
    return _beyond(frozenset().union(*group.values())), any(run.source != "shipped" for run in group), len(group)


def _beyond(found: _Filled, seen: _Filled = frozenset()) -> tuple[int, int]:
    """Return the numbers of timed and of tried cells that were not seen before."""
    timed = [has for _, has in found - seen]
    return timed.count(True), timed.count(False)


def _evidence(name: str, best: Iterable[TriedRun], chosen: Sequence[str]) -> list[str]:
    """Return further runs of the same GPU that show a feature: for each missing feature the newest run."""
    more: list[str] = []
    for names, shows in reports.get(name).evidence:
        showing = [run.run_id for run in best if run.shows(names, shows)]
        if showing and not set(showing) & {*chosen, *more}:
            more.append(showing[0])
    return more


def tried_of_store(store: Store) -> list[TriedRun]:
    """Return the cells that each run of a store tried."""
    rows = grouped(store.rows(_SQL("tried", memory=_MEMORY, metrics=(_MEMORY, *_TIMES))), itemgetter(0))
    about = store.rows("SELECT run_id, source, gpu_name, created_text FROM runs WHERE source <> 'published'")
    return [
        TriedRun(run, source, gpu, made or "", _by_case((Case(*row[5:]), row[1:5]) for row in rows.get(run, ())))
        for run, source, gpu, made in about
    ]


def tried_of_runs(runs: Runs) -> list[TriedRun]:
    """Return the cells that each of some runs tried."""
    found = []
    for run, measurements in runs:
        rows = (m for m in measurements if m.metric in (_MEMORY, *_TIMES))
        tried = ((m.case, (m.implementation, m.mode, m.metric == _MEMORY, m.value is not None)) for m in rows)
        found.append(TriedRun(run.run_id, run.source, run.gpu_name, run.created or "", _by_case(tried)))
    return found


def _by_case(tried: Iterable[tuple[Case, Any]]) -> dict[Case, frozenset[_Tried]]:
    return {case: frozenset(each for _, each in found) for case, found in grouped(tried, itemgetter(0)).items()}


def _filled(cells: Sequence[_Cell], tries: Mapping[Case, frozenset[_Tried]]) -> _Filled:
    """Return the cells that were tried."""
    usual = [(case, found) for case, found in tries.items() if is_usual(case)]

    @cache  # many cells ask for the same case
    def fitting(fields: Iterable[tuple[str, object]]) -> set[_Tried]:
        of_cases = (found for case, found in usual if all(getattr(case, field) == value for field, value in fields))
        return set().union(*of_cases)

    outcomes = [
        {
            has
            for name, of_case, memory, has in fitting(tuple(fields.items()))
            if name in names and mode in (None, of_case) and memory == of_memory
        }
        for fields, names, mode, of_memory in cells
    ]
    return frozenset((at, has) for at, found in enumerate(outcomes) if found for has in {False, *found})


def _wanted(name: str, printed: Runs) -> dict[str, list[_Cell]]:
    """Return the requirements of every own cell of a report, by table."""
    report = reports.get(name)
    found: dict[str, list[_Cell]] = {}
    for grid in report.grids:
        for labels in printed_rows(grid, printed):
            for facts in all_facts(grid, labels):
                names = {facts["implementation"], *own_names(facts, report.implementations)}
                of_memory = own_metric(facts) == _MEMORY
                found.setdefault(grid.section, []).append((case_fields(facts), names, facts.get("mode"), of_memory))
    return found
