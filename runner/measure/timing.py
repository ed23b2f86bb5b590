"""The timing of a case: interleaved rounds over its cells, repetitions of throttled cells, and their rows."""

import math
import random
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from results.compare.between_rounds import RoundMedians, rounds_of
from results.compare.verdicts import leave_open
from results.records import Status
from results.spread import spread
from runner.cells import Cell
from runner.machine import schedstat
from runner.machine.telemetry import Findings
from runner.measure import energy
from runner.measure.case import CaseRun
from runner.measure.check import check_timed, reason_against_result
from runner.measure.stopwatch import KernelStopwatch, changed_settings, replaced_hooks, sample_round
from runner.measure.sustained import record_trace
from runner.overhead import ENERGY, SAMPLING

NO_KERNEL_TIME = "A CPU has no device time apart from the call's own; see the eager timing."
ONLY_A_PLAIN_CALL = "A call of this mode is timed as a program makes it, launches included; see the eager timing."
_SLOW_MS = 250.0  # longer calls are looked at in the first round alone, and once
RETRIED = "retried"
THROTTLED_LATENCY = "throttled_latency_ms"  # metric of an attempt that was repeated
TIMED_ALONE = "The attention of all layers, timed by itself in this run."


@dataclass
class Timed:
    """A cell with its samples so far."""

    cell: Cell
    samples: dict[str, list[float]] = field(default_factory=dict)  # by timing
    round_sizes: dict[str, list[int]] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=dict)  # time that the samples waited for a core, if watched
    flags: dict[str, set[str]] = field(default_factory=dict)
    windows: list[tuple[float, float]] = field(default_factory=list)
    inner: dict[str, list[float]] = field(default_factory=dict)  # samples of the attention inside, by timing
    retries: int = 0

    def forget(self) -> None:
        """Start over."""
        self.samples, self.round_sizes, self.waits, self.flags, self.windows, self.inner = {}, {}, {}, {}, [], {}
        self.retries += 1


class Rounds:
    """The cells of a case that passed their check, timed together."""

    def __init__(self, run: CaseRun) -> None:
        self.run, self.bench = run, run.bench
        self.timed = [Timed(cell) for cell in run.live]

    def take(self) -> None:
        """Take all rounds and retries; every cell gets its rows or the status of its failure.

        With another version there are no retries, because only rounds that both versions took together are compared.
        """
        self.bench.telemetry.settle(self.bench.device)
        self._go_round(self.timed)
        for _ in range(0 if self.bench.turn else self.run.level.retries):
            throttled = [item for item in self._left() if self._keep_if_throttled(item)]
            for item in throttled:
                item.forget()
            self._go_round(throttled)
        rounds = self.bench.protocol.rounds
        if self.bench.turn:
            more: Collection[Cell] = [item.cell for item in self._left()]
            for done in (rounds, 2 * rounds):  # doubled in blocks, as in _undecided
                open_ = [i for i in self._left() if i.cell in more and _took_s(i) <= self.bench.protocol.more_s]
                more = self.bench.turn((done, 0.0), self._rounds_of(open_))
                self._go_round([item for item in open_ if item.cell in more], done, 2 * done)
            self._wait_for_turn(4 * rounds, 0.0)
        elif self.bench.protocol.more_s:
            self._go_round(self._undecided(), rounds, 2 * rounds)
        for item in self._left():
            self._attempt(item, "check after timing", partial(self._check_again, item))
        for item in self._left():
            if self.bench.protocol.trace_s:
                self._attempt(item, "trace", partial(record_trace, self.run, item.cell))
        timed = self._left()
        for item in timed:
            self._emit(item)
        for item in timed if self.bench.energy and self.bench.protocol.energy_s else ():
            self._take_energy(item)

    def _left(self) -> list[Timed]:
        return [item for item in self.timed if item.cell in self.run.live]

    def _attempt(self, item: Timed, step: str, action: Callable[[], Any]) -> None:
        self.run.attempt(item.cell, [item.cell], step, action)

    def _undecided(self) -> list[Timed]:
        """Return the cells of modes that have no verdict because rounds follow each other, unless they take long.

        Their rounds are doubled in one block: to stop at the first round that decides would favor chance.
        """
        found: list[Timed] = []
        for mode in dict.fromkeys(item.cell.mode for item in self._left()):
            items = [item for item in self._left() if item.cell.mode == mode]
            rounds, undecided = self._rounds_of(items), False
            for timing in self.bench.timings:
                known = [medians for (_, of), medians in rounds.items() if of == timing]
                undecided |= leave_open(known, self.bench.pairs.setdefault(timing, []))
            found += items if undecided and sum(map(_took_s, items)) <= self.bench.protocol.more_s else []
        return found

    @staticmethod
    def _rounds_of(items: list[Timed]) -> dict[tuple[Cell, str], RoundMedians]:
        """Return the rounds so far by cell and timing."""
        each = {(i.cell, of): rounds_of(samples, i.round_sizes[of]) for i in items for of, samples in i.samples.items()}
        return {key: medians for key, medians in each.items() if medians}

    def _go_round(self, items: list[Timed], done: int = 0, rounds: int = 0) -> None:
        """Take the rounds after those that are done, up to a number, or to that of the protocol."""
        rounds = rounds or self.bench.protocol.rounds
        for number in range(done, rounds):
            for item in sorted(items, key=partial(self._rank, number=number)):
                self._wait_for_turn(number, self._rank(item, number))
                if item.cell not in self.run.live:
                    continue
                again = f", retry {item.retries}" if item.retries else ""
                step = f"timing, round {number + 1} of {rounds}{again}"
                self._attempt(item, step, partial(self._sample, item))
                if item.cell in self.run.live and item.samples:
                    self._attempt(item, f"result in round {number + 1}", partial(self._look, item, number))

    def _rank(self, item: Timed, number: int) -> float:
        """Return a cell's random rank in a round, which is the same in the worker of another version."""
        cell = item.cell
        return random.Random(f"{self.bench.seed}/{cell.case}/{number}/{cell.implementation}/{cell.mode}").random()

    def _wait_for_turn(self, number: int, rank: float) -> None:
        if self.bench.turn:
            self.bench.turn((number, rank), {})

    def _sample(self, item: Timed) -> None:
        call = self.run.call(item.cell)
        start = time.monotonic()
        for timing in self.bench.timings:
            stopwatch = self.bench.stopwatches.get(timing)
            if stopwatch is None:
                continue
            timed = call if timing == "eager" else self.run.level.device_call(*self.run.arguments(item.cell), call)
            if timed is None:
                continue
            series = item.samples.setdefault(timing, [])
            with self.bench.costs.of(SAMPLING):
                new = sample_round(stopwatch, timed, series, self.bench.protocol)
            self.bench.telemetry.look(start)
            series += new
            item.waits.setdefault(timing, []).extend(stopwatch.take_waits())
            item.round_sizes.setdefault(timing, []).append(len(new))
            if stopwatch.flag:
                item.flags.setdefault(timing, set()).add(stopwatch.flag)
        item.windows.append((start, time.monotonic()))
        if not item.inner:
            self._sample_inner(item)

    def _look(self, item: Timed, number: int) -> None:
        """Fail a cell whose result is wrong in a call that the stopwatch takes, right after another one.

        An implementation that computes only in the check, or only after a pause, is wrong here: an input is changed,
        and the result of the call before is overwritten.
        """
        run, cell = self.run, item.cell
        found: list[Any] = []
        slow = max(samples[-1] for samples in item.samples.values()) > _SLOW_MS
        if run.oracle is None or (slow and number):
            return
        run.inputs.fill(self.bench.seed)  # an implementation may have written into them
        stopwatch = next(self.bench.stopwatches[each] for each in self.bench.timings if each in self.bench.stopwatches)

        def take() -> None:
            for tensor in found:
                tensor.detach().fill_(math.nan)
            result = call()
            found[:] = result if isinstance(result, tuple) else (result,)

        with run.level.doubled(run.inputs, cell.mode, number) as growth:
            call = run.call(cell)
            stopwatch.sample(take, 1 if slow else 2)
        stopwatch.take_waits()
        names, options = self._checked(cell)
        if reason := reason_against_result(tuple(found), names, growth, run.oracle, **options):
            run.fail([cell], Status.INCORRECT, f"While it is timed: {reason}")

    def _checked(self, cell: Cell) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the names of the tensors that a call of the cell returns, and how they are checked."""
        names = next(p.tensors for p in reversed(self.run.level.passes(self.run.case)) if cell.mode in p.modes)
        implementation = self.run.implementation(cell.implementation)
        return names, {"precision": implementation.precision, "fused": implementation.fused}

    def _sample_inner(self, item: Timed) -> None:
        """Sample the attention inside alone, in one round and one timing, which is enough for its share of the call."""
        call = self.run.level.inner_call(*self.run.arguments(item.cell))
        timing = next((each for each in self.bench.timings if each in self.bench.stopwatches), None)
        if call is None or timing is None:
            return
        stopwatch = self.bench.stopwatches[timing]
        with self.bench.costs.of(SAMPLING):
            item.inner[timing] = sample_round(stopwatch, call, [], self.bench.protocol.for_a_share())
        stopwatch.take_waits()

    def _check_again(self, item: Timed) -> None:
        """Check the results of the timed call with a changed input, so that cached results are wrong.

        PyTorch does not count the change as a new version of the tensor.
        """
        cheats = [f"replaced {name}" for name in replaced_hooks()]
        cheats += [f"changed {name}" for name in changed_settings()]
        kernel = self.bench.stopwatches.get("kernel")
        if isinstance(kernel, KernelStopwatch) and kernel.l2_is_set_aside():
            cheats.append("set aside a part of L2, which the flush does not reach")
        if cheats:
            self.run.fail([item.cell], Status.INCORRECT, f"Something {' and '.join(cheats)} in this process.")
            return
        if self.run.oracle is None:
            return
        cell = item.cell
        self.run.inputs.fill(self.bench.seed)  # an implementation may have written into them
        self.run.call(cell)()
        doubled = partial(self.run.level.doubled, self.run.inputs, cell.mode)
        names, options = self._checked(cell)
        reason = check_timed(partial(self.run.call, cell), names, doubled, self.run.oracle, **options)
        if reason:
            self.run.fail([cell], Status.INCORRECT, reason)

    def _take_energy(self, item: Timed) -> None:
        """Measure the energy of a cell whose call is long enough; a failure does not affect its latency."""
        call_ms = statistics.median(item.samples.get("kernel") or [0.0])
        if call_ms < energy.LEAST_MS or not item.cell.about_mode.measures_memory:
            return
        failed = self.run.attempt(item.cell, [], "energy", lambda: self._energy(item, call_ms))
        if failed:
            self.run.emit(item.cell, "energy_j", status=failed[0], note=failed[1])

    def _energy(self, item: Timed, call_ms: float) -> None:
        call = self.run.call(item.cell)
        with self.bench.costs.of(ENERGY), self.bench.telemetry.paused():
            found = self.bench.energy.measure(call, call_ms, self.bench.protocol.energy_s)
        if found:
            for metric, value in (("energy_j", found.joules), ("energy_power_w", found.watts)):
                self.run.emit(item.cell, metric, value=value, statistic="mean", n=found.calls)

    def _emit_share(self, item: Timed, alone: list[float]) -> None:
        """Emit the time of the attention inside as a share of the call."""
        of_call = item.samples.get("kernel") or item.samples.get("eager")
        if not self.run.level.records_share or not of_call:
            return
        share = 100 * statistics.median(alone) / statistics.median(of_call)
        self.run.emit(item.cell, "attention_share", value=share, statistic="median", n=len(alone), note=TIMED_ALONE)

    def _emit(self, item: Timed) -> None:
        findings = self.bench.telemetry.findings(item.windows)
        for timing in self.bench.timings:
            if timing not in item.samples:
                note = NO_KERNEL_TIME if self.bench.device_type == "cpu" else ONLY_A_PLAIN_CALL
                self.run.emit(item.cell, "latency_ms", timing=timing, status=Status.SKIPPED, note=note)
                continue
            self.run.latencies[item.cell, timing] = statistics.median(item.samples[timing])
            flags = (RETRIED,) if item.retries else ()
            self.run.emit(item.cell, "latency_ms", timing=timing, **_fields(item, timing, findings, flags))
        for timing, samples in item.inner.items():
            self.run.emit(item.cell, "attention_ms", timing=timing, **spread(samples))
            self._emit_share(item, samples)
        self.run.live.remove(item.cell)

    def _keep_if_throttled(self, item: Timed) -> bool:
        """Return whether an attempt was throttled, and if so keep its samples under a separate metric."""
        findings = self.bench.telemetry.findings(item.windows)
        for timing in item.samples if findings.throttled else ():
            origin = f"attempt {item.retries + 1}"
            self.run.emit(item.cell, THROTTLED_LATENCY, timing=timing, origin=origin, **_fields(item, timing, findings))
        return findings.throttled


def _took_s(item: Timed) -> float:
    return sum(end - start for start, end in item.windows)


def _fields(item: Timed, timing: str, findings: Findings, more_flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a latency row: value, spread, note and flags."""
    waited = schedstat.waiting_share(item.samples[timing], item.waits[timing])
    flags = (*sorted(item.flags.get(timing, ())), *findings.flags, *more_flags)
    return {
        "note": " ".join(filter(None, [waited and schedstat.sentence(waited), findings.note])) or None,
        "flags": (*flags, schedstat.BUSY) if waited else flags,
        "round_sizes": tuple(item.round_sizes[timing]),
        "sm_clock_mhz": findings.sm_clock_mhz,
        **spread(item.samples[timing]),
    }
