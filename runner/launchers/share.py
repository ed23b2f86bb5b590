"""The bookkeeping of a run that one or more cards measure: assignment of cases, received rows, and journal. No Ray.

Cases are assigned one at a time, the longest first, so that all cards end at about the same time. A card sends the rows
of a case when the case is complete, and they are written to the journal at once. Rounds and ratios of a case are thus
always from one card, and a card that is lost in the middle of a case leaves no rows of it.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from results.files.journal import JournalError, RunFolder
from results.records import Case, Measurement, RecordError, Run, Status, measurement_from_json
from runner.cells import Cell, without_number
from runner.overhead import WALL
from runner.progress import StateWriter
from runner.supervise.job import Job, Refused
from runner.supervise.supervisor import refuse_differences

LOSSES_OF_CASE = 3  # lost cards after which a case is given up
# Fields that all cards of a run must have in common, so that its numbers are comparable.
SAME = ("gpu_name", "torch", "triton", "kernel_hash", "protocol")


@dataclass
class CardAtWork:
    """A card that measures cases of a share."""

    name: str
    host: str
    gpu_name: str | None
    case: Case | None = None  # current case
    current: str = "starting"  # current step in words


@dataclass
class Planned:
    """A case of the plan."""

    cells: list[Cell]
    lacking: set[str]  # ids of the rows that its cells still need
    losses: int = 0
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = sum(cell.seconds for cell in self.cells)


class Share:
    """A run, its cards, and its unfinished cases. Its folder is created with the first card."""

    def __init__(self, job: Job, home: Path, run_id: str, *, several: bool, one_per_host: bool) -> None:
        self._job, self._home, self.run_id = job, home, run_id
        self._several, self._one_per_host = several, one_per_host
        self.folder: RunFolder | None = None
        self._lock = contextlib.ExitStack()
        self._ids: set[str] = set()
        self._plan: dict[Case, Planned] = {}
        self._waiting: list[Case] = []  # cases that are not assigned, the longest last
        self._calibration: Case | None = None
        self._cards: dict[str, CardAtWork] = {}
        self._was_calibrated: set[str] = set()
        self._timings: tuple[str, ...] = ()
        self._costs_of: dict[int, Mapping[str, float]] = {}  # by task
        self._costs_before: dict[str, float] = {}  # costs of a resumed run until its interruption
        self._work_at_start = 0.0
        self._started, self._state = time.monotonic(), StateWriter()

    def admit(self, name: str, host: str, record: Run, cells: list[Cell]) -> None:
        """Add a card; the first card supplies the run's record and plan.

        Raises Refused if the card differs from the run in one of the fields SAME.
        """
        if self.folder is None:
            self._begin(record, cells)
        run = self.folder.run()
        for key in SAME:
            if getattr(run, key) != getattr(record, key):
                raise Refused(
                    f"Card {name} has {key} {getattr(record, key)!r} and the run {getattr(run, key)!r}, so their "
                    "numbers cannot be in one run."
                )
        self._cards[name] = CardAtWork(name, host, record.gpu_name)

    def take(self, name: str) -> tuple[str, int | None]:
        """Return a card's next task: ("case", its number in the sweep), ("wait", None) or ("end", None)."""
        card = self._cards[name]
        card.case = None
        if self._one_per_host and any(c.host == card.host and c.case for c in self._cards.values() if c is not card):
            return "wait", None
        case = self._next_for(card)
        if case is None:
            card.current = "done"
            return ("wait", None) if any(c.case for c in self._cards.values()) else ("end", None)
        card.case = case
        return "case", list(self._plan).index(case)

    def lost(self, name: str, why: str) -> None:
        """Remove a lost card, drop its rows of an unfinished case, and make the case available again."""
        card = self._cards.pop(name, None)
        if card is None:
            return
        case, card.case = card.case, None
        if case is None or not self._plan[case].lacking:
            return
        planned = self._plan[case]
        planned.losses += 1
        if planned.losses < LOSSES_OF_CASE:
            self._wait_again(case)
            return
        note = f"Given up after {planned.losses} cards were lost with it. {why}"
        rows = [row for cell in planned.cells for row in self._rows_of(cell, Status.ERROR, note)]
        self._journal(case, rows, None)

    def heard(self, name: str, current: str) -> None:
        """Note the current step of a card, in words."""
        self._cards[name].current = current

    def spent(self, task: int, costs: Mapping[str, float]) -> None:
        """Note the seconds of a task's card so far by kind of work."""
        self._costs_of[task] = costs

    @property
    def costs(self) -> dict[str, float] | None:
        """Return the seconds of all cards by kind of work and the wall time of the run; None if not known."""
        found = sum(map(Counter, self._costs_of.values()), Counter(self._costs_before))
        wall_s = self._costs_before.get(WALL, 0.0) + time.monotonic() - self._started
        return {kind: round(seconds, 3) for kind, seconds in (found | {WALL: wall_s}).items()} if found else None

    def log(self, name: str, lines: Iterable[str]) -> None:
        """Append the output of a card's workers to the run's log."""
        with contextlib.suppress(OSError), open(self.folder.log_path, "a", encoding="utf-8") as file:
            file.writelines(f"{name}: {line}\n" for line in lines)  # a full disk must not stop the sweep twice

    def done(self, name: str, records: Iterable[dict[str, Any]]) -> None:
        """Write the rows of a card's complete case to the journal. Raises JournalError."""
        card, of_card = self._cards[name], {"card": name if self._several else None}
        try:
            rows = [measurement_from_json(record | of_card) for record in records]
        except RecordError as error:
            raise JournalError(f"Card {name} sent a row that cannot be read: {error}") from error
        self._journal(card.case, rows, name)
        if self._plan[card.case].lacking:
            self._wait_again(card.case)
        card.case = None
        self.write_state("running")

    def peaks(self, record: Run) -> None:
        """Record the peaks that a card's worker measured, if the run has none yet."""
        run = self.folder.run()
        if run.measured_tflops is None and record.measured_tflops:
            found = {name: getattr(record, name) for name in ("measured_tflops", "measured_gbs", "empty_launch_ms")}
            self.folder.write_run(replace(run, **found))

    @property
    def over(self) -> bool:
        """Return whether every cell has a status."""
        return self.folder is not None and not any(planned.lacking for planned in self._plan.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of cells with a status and the number of all cells."""
        total = sum(len(planned.cells) for planned in self._plan.values())
        left = sum(len(planned.cells) for planned in self._plan.values() if planned.lacking)
        return total - left, total

    @property
    def current(self) -> str:
        """Return the current step of each card in words."""
        several = len(self._cards) > 1
        return "; ".join(f"{c.name}: {c.current}" if several else c.current for c in self._cards.values())

    @property
    def eta_s(self) -> float | None:
        """Return the remaining seconds by the ratio of elapsed to estimated time so far; None if not known."""
        left = sum(planned.seconds for planned in self._plan.values() if planned.lacking)
        spent, did = time.monotonic() - self._started, self._work_at_start - left
        return (left * spent / did or None) if did > 0 else None

    def write_state(self, state: str, message: str | None = None) -> None:
        """Write the state of the run, once it has a folder. Raises JournalError."""
        if self.folder is None:
            return
        done, total = self.counts
        known = {"current": self.current, "eta_s": self.eta_s, "costs": self.costs}
        self._state.write(self.folder, state, done=done, total=total, message=message, **known)

    def close(self) -> None:
        """Release the run's lock."""
        self._lock.close()

    def _begin(self, record: Run, cells: list[Cell]) -> None:
        run = replace(record, run_id=self.run_id, command=self._job.command(""), cards={} if self._several else None)
        self._timings = tuple(run.sweep["timings"])
        if self._job.resume:
            self.folder = RunFolder.open(self._home, self._job.resume)
            refuse_differences(self.folder.run(), run, SAME if self._several else (*SAME, "gpu_uuid"))
            self._costs_before = self.folder.costs()
        else:
            self.folder = RunFolder.create(self._home, run)
        self._lock.enter_context(self.folder.lock())
        self.folder.clear_cancel()
        self._ids = self.folder.measurement_ids()
        for _, same_case in groupby(cells, key=lambda cell: cell.case):
            of_case = list(same_case)
            rows = [row for cell in of_case for row in self._rows_of(cell, Status.SKIPPED, "")]
            lacking = {row.measurement_id for row in rows} - self._ids
            self._plan[of_case[0].case] = Planned(of_case, lacking)
        self._waiting = sorted((c for c, p in self._plan.items() if p.lacking), key=lambda c: self._plan[c].seconds)
        self._work_at_start = sum(self._plan[case].seconds for case in self._waiting)
        if self._several and self._waiting:
            self._calibration = self._waiting[len(self._waiting) // 3]  # short, since every card measures it
        self.write_state("running")

    def _next_for(self, card: CardAtWork) -> Case | None:
        calibrate = self._calibration
        if calibrate and card.name not in self._was_calibrated:
            self._was_calibrated.add(card.name)
            if calibrate in self._waiting:
                self._waiting.remove(calibrate)
            return calibrate
        return self._waiting.pop() if self._waiting else None

    def _wait_again(self, case: Case) -> None:
        if case not in self._waiting:
            self._waiting.append(case)  # it is assigned next

    def _rows_of(self, cell: Cell, status: Status, note: str) -> list[Measurement]:
        return without_number(self.run_id, cell, self._timings, status, note)

    def _journal(self, case: Case, rows: list[Measurement], card: str | None) -> None:
        if card and case == self._calibration:
            self._calibrate(card, rows)
        new = {row.measurement_id: row for row in rows}
        new = {name: row for name, row in new.items() if name not in self._ids}
        if new:
            self.folder.append(*new.values())
        self._ids |= set(new)
        self._plan[case].lacking -= set(new)

    def _calibrate(self, name: str, rows: list[Measurement]) -> None:
        """Record the latencies of a card's calibration case in the run's record."""
        card, run = self._cards.get(name), self.folder.run()
        facts = {"host": card.host, "gpu_name": card.gpu_name} if card else {}
        latencies = {
            f"{row.implementation} {row.mode} {row.timing}": row.value
            for row in rows
            if row.metric == "latency_ms" and row.status is Status.OK
        }
        cards = {**(run.cards or {}), name: {**facts, "calibration": latencies}}
        self.folder.write_run(replace(run, cards=cards))
