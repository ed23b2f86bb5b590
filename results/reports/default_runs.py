"""Which runs fill a report best: the runs of the home, or those that ship, of one GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from results import reports
from results.records import CASE_FIELDS, Case
from results.reports.own import all_said, is_usual, own_names, said_fields
from results.reports.rendering import Runs, printed_rows
from results.store.database import Store

_Tried = tuple[str, str | None]  # implementation, mode
_Cell = tuple[dict[str, object], set[str], str | None]  # fields of its case, who may stand in it, mode


@dataclass(frozen=True, eq=False)
class TriedRun:
    """What a run holds latencies of, with a value or a reason for none."""

    run_id: str
    source: str
    gpu_name: str | None
    created: str
    tries: Mapping[Case, frozenset[_Tried]]

    def shows(self, names: Collection[str], shown_by: Callable[[Case], object]) -> bool:
        """Tell whether one of some implementations was tried in such a case."""
        return any(shown_by(case) and any(name in names for name, _ in found) for case, found in self.tries.items())


def default_runs(name: str, printed: Runs, tried: Iterable[TriedRun]) -> list[str]:
    """Return the fewest runs that fill the most cells of a report, of equals the newest, the fullest first.

    They are of one GPU. Runs of the home come before those that ship, which stand in only where the home has none.
    """
    cells = {run: _cells(name, printed, run.tries) for run in sorted(tried, key=lambda run: run.created, reverse=True)}
    own = {run: found for run, found in cells.items() if run.source != "published"}
    of_home = {run: found for run, found in own.items() if run.source != "shipped"}
    groups: dict[str | None, dict[TriedRun, set[int]]] = {}
    for run, found in (of_home if any(of_home.values()) else own).items():
        groups.setdefault(run.gpu_name, {})[run] = found
    best = max(groups.values(), key=lambda group: len(set().union(*group.values())), default={})
    chosen, seen = [], set()
    while best and (run := max(best, key=lambda run: len(best[run] - seen))) and best[run] - seen:
        chosen.append(run.run_id)
        seen |= best[run]
    return chosen + _evidence(name, best, chosen)


def _evidence(name: str, best: Iterable[TriedRun], chosen: Sequence[str]) -> list[str]:
    """Return further runs of the same GPU that show what the chosen ones do not: the newest with such a case."""
    more: list[str] = []
    for names, shows in getattr(reports.get(name), "EVIDENCE", ()):
        showing = [run.run_id for run in best if run.shows(names, shows)]
        if showing and not set(showing) & {*chosen, *more}:
            more.append(showing[0])
    return more


def tried_of_store(store: Store) -> list[TriedRun]:
    """Return what each run of a store holds latencies of."""
    fields = ", ".join(CASE_FIELDS)
    rows = store.rows(
        f"""SELECT DISTINCT run_id, implementation, mode, {fields} FROM results
            WHERE metric IN ('latency_ms', 'latency_extrapolated_ms') AND source <> 'published'"""
    )
    tries: dict[str, dict[Case, set[_Tried]]] = {}
    for run_id, implementation, mode, *values in rows:
        case = Case(**dict(zip(CASE_FIELDS, values, strict=True)))
        tries.setdefault(run_id, {}).setdefault(case, set()).add((implementation, mode))
    about = store.rows("SELECT run_id, source, gpu_name, created_text FROM runs WHERE source <> 'published'")
    return [TriedRun(*facts, created or "", _frozen(tries.get(facts[0], {}))) for *facts, created in about]


def tried_of_runs(runs: Runs) -> list[TriedRun]:
    """Return what each of some runs, read whole, holds latencies of."""
    found = []
    for run, measurements in runs:
        tries: dict[Case, set[_Tried]] = {}
        for m in measurements:
            if m.metric in ("latency_ms", "latency_extrapolated_ms"):
                tries.setdefault(m.case, set()).add((m.implementation, m.mode))
        found.append(TriedRun(run.run_id, run.source, run.gpu_name, run.created or "", _frozen(tries)))
    return found


def _frozen(tries: Mapping[Case, set[_Tried]]) -> dict[Case, frozenset[_Tried]]:
    return {case: frozenset(found) for case, found in tries.items()}


def _cells(name: str, printed: Runs, tries: Mapping[Case, frozenset[_Tried]]) -> set[int]:
    """Return which of a report's own cells were tried, by their place in it."""
    usual = [(case, found) for case, found in tries.items() if is_usual(case)]
    return {at for at, cell in enumerate(_wanted(name, printed)) if any(_is_tried(cell, *of_case) for of_case in usual)}


def _is_tried(cell: _Cell, case: Case, tried: frozenset[_Tried]) -> bool:
    fields, names, mode = cell
    fits = all(getattr(case, field) == value for field, value in fields.items())
    return fits and any(name in names and mode in (None, of_case) for name, of_case in tried)


def _wanted(name: str, printed: Runs) -> Iterator[_Cell]:
    """Yield what every own cell of a report needs: fields of a case, one of some implementations, a mode."""
    report = reports.get(name)
    for grid in reports.grids(name):
        for labels in printed_rows(grid, printed):
            for says in all_said(grid, labels):
                names = {says["implementation"], *own_names(says, report.IMPLEMENTATIONS)}
                yield said_fields(says), names, says.get("mode")
