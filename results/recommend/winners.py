"""Winners of stored results: the contests of a slice, decided by `results.recommend.contest`, and the maps of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd

from results.grouping import grouped
from results.implementations import facts_of
from results.levels import Level, level_of
from results.query.declared import of_rows
from results.query.pages import gpus, options
from results.query.pairing import cells
from results.query.speedups import cell_columns
from results.recommend.contest import JUDGED_WITHIN, Contender, Contest, ContestResult, Rival, Standing, decide
from results.recommend.doubt import doubts
from results.records import CASE_FIELDS, MODES, Case, Measurement
from results.slice import BASELINES, Filters, level_in
from results.sql import SqlFile
from results.store.database import Store
from results.store.ingest import COLUMNS as STORED

FIELDS = tuple(name for name in STORED if name not in ("measurement_id", "time", "samples"))
_FACTS = ("speedup", "source", "protocol", "mask", "shape")
_SQL = SqlFile(__file__)


def contests(store: Store, filters: Filters) -> list[Contest]:
    """Return every case of the slice with all its implementations, in every mode if the slice names none."""
    modes = [filters.mode] if filters.mode else MODES
    return [contest for mode in modes for contest in _contests(store, replace(filters, mode=mode))]


def with_doubts(store: Store, filters: Filters) -> tuple[list[Contest], dict[str, str]]:
    """Return the contests of the slice, and the reasons why some of their times are impossible, by measurement id."""
    found = contests(store, filters)
    return found, doubts(store, (contender.measurement for contest in found for contender in contest.values()))


def winners(store: Store, filters: Filters) -> pd.DataFrame:
    """Return for every cell (its dtype and place on the axes of the level) the winner, the ties and the failures.

    `status` is missing if nothing has a number and not every implementation has been tried yet.
    """
    level, columns = level_in(filters), cell_columns(filters)
    found, void = with_doubts(store, filters)
    by_cell = grouped(found, lambda contest: place_in(_first(contest).measurement.case, level))
    by_cell.pop(None, None)
    tried = {cell: len({name for contest in cases for name in contest}) for cell, cases in by_cell.items()}
    most_tried: dict[str | None, int] = {}
    for cell, number in tried.items():
        most_tried[cell[0]] = max(number, most_tried.get(cell[0], 0))
    rows = [
        dict(zip(columns, cell, strict=True))
        | _row(result := decide(cases), tried[cell] == most_tried[cell[0]])
        | {"void": _void(cases, result.winner, void)}
        for cell, cases in sorted(by_cell.items(), key=lambda item: [(part is None, part) for part in item[0]])
    ]
    return pd.DataFrame(rows, columns=[*columns, *WINNER_COLUMNS]).astype(
        dict.fromkeys(("latency_ms", "p20", "p80", "speedup", "margin"), float) | {"n": "Int64"}
    )


WINNER_COLUMNS = (
    "winner", "latency_ms", "p20", "p80", "n", "speedup", "next", "margin", "tied", "rivals", "failed",
    "status", "contenders", "cases", "standing", "others", "void",
)  # fmt: skip


def winners_by_gpu(store: Store, filters: Filters, timings: Sequence[str]) -> pd.DataFrame:
    """Return the winners of every GPU that has the slice's workload, mask and mode.

    Each GPU has the first of the timings and the first of the baselines that it has numbers for.
    """
    tables = []
    for gpu in gpus(store)["gpu"]:
        scope = {"gpu": gpu, "workload": filters.workload, "mask": filters.mask}
        there = options(store, "timing", **scope)
        found = [timing for timing in timings if timing in set(there.loc[there["numbers"] > 0, "choice"])]
        names = set(options(store, "implementation", **scope)["choice"])
        baseline = next((name for name in (filters.baseline, *BASELINES) if name in names), filters.baseline)
        whole = replace(filters, gpu=gpu, baseline=baseline, shape=None, source=(), run=())
        slices = (replace(whole, timing=timing) for timing in found)
        of_gpu = next((table for one in slices if len(table := winners(store, one))), None)
        if of_gpu is not None:
            tables.append(of_gpu.assign(gpu=gpu))
    if not tables:
        return pd.DataFrame(columns=[*cell_columns(filters), *WINNER_COLUMNS, "gpu"])
    return pd.concat(tables, ignore_index=True)


def _contests(store: Store, filters: Filters) -> Iterator[Contest]:
    ctes, params = cells(store, filters)
    names = (*FIELDS, "samples", *_FACTS)
    rows = store.rows(_SQL("contests", ctes=ctes, stored=", ".join(FIELDS), judged_within=JUDGED_WITHIN), params)
    contest: dict[str, Contender] = {}
    said = of_rows(store, level_in(filters).name)
    precision = cache(lambda name, run_id: facts_of(name, said, run_id).precision)
    for row in rows:
        said_of = dict(zip(names, row, strict=True))
        of_run = {name: said_of.pop(name) for name in _FACTS}
        of_run["precision"] = precision(said_of["implementation"], said_of["run_id"])
        contender = Contender(measurement_of(said_of), **of_run)
        if contest and _first(contest).measurement.case != contender.measurement.case:
            yield contest
            contest = {}
        contest[contender.measurement.implementation] = contender
    if contest:
        yield contest


def _first(contest: Contest) -> Contender:
    return next(iter(contest.values()))


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """Return the measurement of a stored row."""
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
    case = Case(**{name: fields.pop(name) for name in CASE_FIELDS})
    fields |= {name: fields[name] or () for name in ("samples", "flags")}
    return Measurement(case=case, **fields)


def place_in(case: Case, level: Level) -> tuple | None:
    """Return the place of a case on the map of a level; None if its level has another map."""
    if level_of(case).rows != level.rows:
        return None
    return case.dtype, getattr(case, level.columns.field), getattr(case, level.rows.field)


def _void(cases: Sequence[Contest], winner: str | None, void: Mapping[str, str]) -> str | None:
    """Return the reason why one of the winner's times is impossible."""
    times = (contest[winner].measurement for contest in cases if winner in contest)
    return next((void[time.measurement_id] for time in times if time.measurement_id in void), None)


def _row(result: ContestResult, all_tried: bool) -> dict[str, Any]:
    known = result.winner or all_tried
    return {
        **{name: getattr(result, name) for name in ("winner", "latency_ms", "n", "speedup", "cases")},
        "p20": result.spread[0],
        "p80": result.spread[1],
        "next": result.rivals[0].name if result.rivals else None,  # the fastest of the others
        "margin": result.rivals[0].ratio if result.rivals else None,  # its time over the winner's
        "tied": [result.winner, *result.ties] if result.winner else [],
        "rivals": [rival_words(rival) for rival in result.rivals],
        "failed": [f"{name} {status}" for name, status in result.failed],
        "status": result.status if known else None,
        "contenders": len(result.rivals) + 1 if result.winner else 0,
        "standing": str(result.standing) if result.winner else None,
        "others": [
            {"implementation": each.name, "ratio": each.ratio, "ratio_low": each.low, "ratio_high": each.high}
            | {"standing": str(each.standing)}
            for each in result.rivals
        ],
    }


def rival_words(rival: Rival) -> str:
    """Return a rival in a few words: triton_fa2 takes 1.01× as long (90 % interval 0.99 to 1.03): equally fast..."""
    span = "" if rival.low is None else f" (90 % interval {rival.low:.2f} to {rival.high:.2f})"
    end = "" if rival.standing is Standing.AHEAD else f": {rival.standing}"
    end = ": behind, not certain by the 99 % test" if rival.standing is Standing.NOT_CERTAIN else end
    return f"{rival.name} takes {rival.ratio:.2f}× as long{span}{end}"
