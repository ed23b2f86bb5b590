"""The certainty of the speedups of one implementation over the baseline, cell by cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.compare.verdicts import BAND, judge, sampled_in_rounds
from results.grouping import grouped
from results.query.pairing import paired
from results.recommend.contest import mean_range
from results.recommend.doubt import doubts
from results.recommend.winners import FIELDS, measurement_of, place_in
from results.records import Measurement
from results.slice import Filters, level_in
from results.sql import SqlFile
from results.store.database import Store
from results.store.summary import CASE_ID

_SQL = SqlFile(__file__)
Pair = tuple[Measurement, Measurement]  # the times of the baseline and of the implementation


@dataclass(frozen=True)
class SpeedupRange:
    """The 90 % interval of a cell's speedup, and the reason if one of its times is impossible."""

    low: float | None  # None: no spread to judge by
    high: float | None
    void: str | None  # reason why one of the two times is impossible

    @property
    def decided(self) -> bool:
        """Return whether the interval is beyond the band of 2 % or within it; a number without a spread is decided."""
        if self.low is None or self.high is None:
            return True
        beyond = self.low > 1 + BAND or self.high < 1 / (1 + BAND)
        return beyond or (self.low >= 1 / (1 + BAND) and self.high <= 1 + BAND)


def speedup_ranges(store: Store, filters: Filters, implementation: str) -> dict[tuple, SpeedupRange]:
    """Return the range of an implementation's speedup by dtype and place on the axes of the level."""
    level = level_in(filters)
    cells = grouped(_pairs(store, filters, implementation), lambda pair: place_in(pair[0].case, level))
    cells.pop(None, None)
    void = doubts(store, (each for pairs in cells.values() for pair in pairs for each in pair))
    protocols = dict(store.kept("SELECT run_id, protocol FROM runs"))
    return {place: _range(pairs, void, protocols) for place, pairs in cells.items()}


def variation(store: Store, device: str) -> float | None:
    """Return by which factor nine of ten times of PyTorch vary between runs on a processor; None if nothing repeats."""
    return store.kept(_SQL("variation"), [device])[0][0]


def _pairs(store: Store, filters: Filters, implementation: str) -> list[Pair]:
    """Return the stored times of each case that has both, with their samples.

    The run is the one that counts among all implementations of the filters, so it is the run of the shown speedup.
    """
    names = [filters.baseline, implementation]
    found = [row.number for row in paired(store, filters) if row.speedup and row.number.implementation in names]
    times = {(row.run_id, row.case_id, row.implementation): row.value for row in found}
    runs = sorted({row.run_id for row in found})
    columns = (*FIELDS, "samples")
    rows = store.rows(
        _SQL("times", case_id=CASE_ID, columns=", ".join(columns)),
        [runs, names, sorted(set(times.values())), filters.mode, filters.timing],
    )
    stored: dict[tuple, Measurement] = {}
    for case_id, *fields in rows:
        record = dict(zip(columns, fields, strict=True))
        key = record["run_id"], case_id, record["implementation"]
        if times.get(key) == record["value"]:
            stored[key] = measurement_of(record)
    both = ([stored.get((run_id, case_id, name)) for name in names] for run_id, case_id in {key[:2] for key in times})
    return [(one, other) for one, other in both if one and other]


def _range(pairs: Sequence[Pair], void: Mapping[str, str], protocols: Mapping[str, str | None]) -> SpeedupRange:
    """Return the range of the mean over some shapes, as if all had the same error."""
    ids = (each.measurement_id for pair in pairs for each in pair)
    wrong = next((void[name] for name in ids if name in void), None)
    found = []
    for baseline, other in pairs:
        protocol = protocols.get(baseline.run_id)
        found.append(judge(baseline, other, protocol=protocol, paired=sampled_in_rounds(protocol)))
    return SpeedupRange(*mean_range(found), wrong)
