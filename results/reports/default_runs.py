"""Which runs fill a report best: for each of its tables those of one GPU, of the home or of what ships."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from results import reports
from results.records import CASE_FIELDS, Case
from results.reports.own import all_facts, case_fields, is_usual, own_metric, own_names
from results.reports.rendering import Runs, printed_rows
from results.store.database import Store

_MEMORY = "peak_memory_mb"
_TIMES = ("latency_ms", "latency_extrapolated_ms")
_Tried = tuple[str, str | None, bool, bool]  # implementation, mode, whether of memory, whether there is a value
_Cell = tuple[dict[str, object], set[str], str | None, bool]  # fields of its case, who may stand in it, mode, of memory


@dataclass(frozen=True, eq=False)
class TriedRun:
    """What a run holds latencies and peak memory of, with a value or a reason for none."""

    run_id: str
    source: str
    gpu_name: str | None
    created: str
    tries: Mapping[Case, frozenset[_Tried]]

    def shows(self, names: Collection[str], shown_by: Callable[[Case], object]) -> bool:
        """Tell whether one of some implementations was tried in such a case."""
        return any(shown_by(case) and any(name in names for name, *_ in found) for case, found in self.tries.items())


@dataclass(frozen=True)
class _Filled:
    """Cells of a report, by their places in it."""

    timed: frozenset[int] = frozenset()  # with a value
    tried: frozenset[int] = frozenset()  # with a value or a reason for none

    def __or__(self, other: _Filled) -> _Filled:
        return _Filled(self.timed | other.timed, self.tried | other.tried)

    def __and__(self, cells: Collection[int]) -> _Filled:
        return _Filled(self.timed.intersection(cells), self.tried.intersection(cells))

    def beyond(self, other: _Filled) -> tuple[int, int]:
        """Return how many cells it has a value for, and a value or a reason, where the other has none."""
        return len(self.timed - other.timed), len(self.tried - other.tried)


_NOTHING = _Filled()


def default_runs(name: str, printed: Runs, tried: Iterable[TriedRun]) -> list[str]:
    """Return the runs that fill a report best, those of the home first, then the fullest.

    Each table is filled by the fewest runs of the one GPU that fills most of it: most cells with a value, then with a
    reason for none. Of equal GPUs one with a run of the home is taken, then the one with the most runs. Of equal runs
    those of the home are taken, then the newest.
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
        chosen |= dict.fromkeys(_best_of_one_gpu({run: filled[run] & places for run in order}))
        begin += len(found)
    best = sorted(chosen, key=lambda run: (run.source == "shipped", -len(filled[run].tried)))
    same_gpu = [run for run in order if best and run.gpu_name == best[0].gpu_name]
    names = [run.run_id for run in best]
    return names + _evidence(name, same_gpu, names)


def _best_of_one_gpu(filled: Mapping[TriedRun, _Filled]) -> list[TriedRun]:
    """Return the fewest runs that fill what all runs of their GPU fill, of the GPU whose runs fill most."""
    groups: dict[str | None, dict[TriedRun, _Filled]] = {}
    for run, found in filled.items():
        groups.setdefault(run.gpu_name, {})[run] = found
    best = max(groups.values(), key=_rank, default={})
    chosen, seen = [], _NOTHING
    while best and any(best[run := max(best, key=lambda run: best[run].beyond(seen))].beyond(seen)):
        chosen.append(run)
        seen |= best[run]
    return chosen


def _rank(group: Mapping[TriedRun, _Filled]) -> tuple[tuple[int, int], bool, int]:
    """Return what puts the runs of one GPU above those of another: what they fill, a run of the home, how many."""
    return _union(group.values()).beyond(_NOTHING), any(run.source != "shipped" for run in group), len(group)


def _union(found: Iterable[_Filled]) -> _Filled:
    whole = _NOTHING
    for each in found:
        whole |= each
    return whole


def _evidence(name: str, best: Iterable[TriedRun], chosen: Sequence[str]) -> list[str]:
    """Return further runs of the same GPU that show what the chosen ones do not: the newest with such a case."""
    more: list[str] = []
    for names, shows in getattr(reports.get(name), "EVIDENCE", ()):
        showing = [run.run_id for run in best if run.shows(names, shows)]
        if showing and not set(showing) & {*chosen, *more}:
            more.append(showing[0])
    return more


def tried_of_store(store: Store) -> list[TriedRun]:
    """Return what each run of a store holds latencies and peak memory of."""
    fields = ", ".join(CASE_FIELDS)
    rows = store.rows(
        f"""SELECT run_id, implementation, mode, metric = '{_MEMORY}', bool_or(value IS NOT NULL), {fields} FROM results
            WHERE metric IN {(_MEMORY, *_TIMES)} AND source <> 'published' GROUP BY ALL"""
    )
    tries: dict[str, dict[Case, set[_Tried]]] = {}
    for run_id, implementation, mode, of_memory, has_value, *values in rows:
        case = Case(**dict(zip(CASE_FIELDS, values, strict=True)))
        tries.setdefault(run_id, {}).setdefault(case, set()).add((implementation, mode, of_memory, has_value))
    about = store.rows("SELECT run_id, source, gpu_name, created_text FROM runs WHERE source <> 'published'")
    return [TriedRun(*facts, created or "", _frozen(tries.get(facts[0], {}))) for *facts, created in about]


def tried_of_runs(runs: Runs) -> list[TriedRun]:
    """Return what each of some runs, read whole, holds latencies and peak memory of."""
    found = []
    for run, measurements in runs:
        tries: dict[Case, set[_Tried]] = {}
        for m in measurements:
            if m.metric in (_MEMORY, *_TIMES):
                tried = m.implementation, m.mode, m.metric == _MEMORY, m.value is not None
                tries.setdefault(m.case, set()).add(tried)
        found.append(TriedRun(run.run_id, run.source, run.gpu_name, run.created or "", _frozen(tries)))
    return found


def _frozen(tries: Mapping[Case, set[_Tried]]) -> dict[Case, frozenset[_Tried]]:
    return {case: frozenset(found) for case, found in tries.items()}


def _filled(cells: Sequence[_Cell], tries: Mapping[Case, frozenset[_Tried]]) -> _Filled:
    """Return which cells were tried, by their places."""
    usual = [(case, found) for case, found in tries.items() if is_usual(case)]
    outcomes = [{has for of_case in usual for has in _outcomes(cell, *of_case)} for cell in cells]
    timed = frozenset(at for at, found in enumerate(outcomes) if True in found)
    return _Filled(timed, frozenset(at for at, found in enumerate(outcomes) if found))


def _outcomes(cell: _Cell, case: Case, tried: frozenset[_Tried]) -> Iterator[bool]:
    """Yield of each try that fits a cell whether it gave a value."""
    fields, names, mode, of_memory = cell
    if all(getattr(case, field) == value for field, value in fields.items()):
        yield from (
            has
            for name, of_case, memory, has in tried
            if name in names and mode in (None, of_case) and memory == of_memory
        )


def _wanted(name: str, printed: Runs) -> dict[str, list[_Cell]]:
    """Return by table what every own cell of a report needs: fields of a case, who may stand in it, mode, which number.

    Of numbers two are told apart, peak memory and time.
    """
    report = reports.get(name)
    found: dict[str, list[_Cell]] = {}
    for grid in report.GRIDS:
        for labels in printed_rows(grid, printed):
            for facts in all_facts(grid, labels):
                names = {facts["implementation"], *own_names(facts, report.IMPLEMENTATIONS)}
                of_memory = own_metric(facts) == _MEMORY
                found.setdefault(grid.section, []).append((case_fields(facts), names, facts.get("mode"), of_memory))
    return found
