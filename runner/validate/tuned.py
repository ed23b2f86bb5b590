"""What a tune is worth on shapes that it has not seen: `python -m runner.validate tune [--first RUN]`.

A random half of the cases of a run makes a rule as `runner tune` does, together with the sweep of corners on that GPU,
or on one of its compute capability, and with the portable kernels as the built-in choice, as on a new chip. The other
half is decided by that rule: its loss is the time of what the rule names over that of the fastest correct
implementation. Each case decided by a rule of all others shows what the missing half costs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from kernels import choice, problem
from results.implementations import facts_of
from results.recommend import rule_file
from results.records import Case, Measurement, Run, Status

SHIPPED = ("20261130T204056Z-real_models-badfc1", "20261201T034442Z-real_models-ea5990", "h100-real_models")
MOST_IN_THE_MEAN, MOST = 1.03, 1.15
HALVES = 10
_PORTABLE = "triton_fa2"
Cell = tuple[Case, str, str]  # case, mode and timing
Losses = dict[Cell, tuple[str, float]]  # the named implementation, and its time over the best


class Tuned:
    """The cells of a run, and the rule of any of its cases. Raises RuleError if no rule follows from all of them."""

    def __init__(self, run: Run, measurements: Sequence[Measurement], corners: Sequence[Measurement] = ()) -> None:
        """Read the times; every rule knows the corners."""
        self._rule = rule_of(run, [*measurements, *corners])
        self._cells = {cell: times for cell, times in _times(run, measurements).items() if _PORTABLE in times}
        self._usable = {name for times in self._cells.values() for name in times}
        ways, regimes = rule_file.DIRECTIONS, rule_file.REGIMES
        self._asked = {x: problem.of_case(x[0], ways[x[1]], regimes[x[2]]) for x in self._cells}
        self.cases = sorted({case for case, _, _ in self._cells}, key=repr)

    def of_half(self, seed: int) -> Losses:
        """Return the losses of a random half of the cases by the rule of the others."""
        known = set(random.Random(seed).sample(self.cases, (len(self.cases) + 1) // 2))
        return self._losses(set(self.cases) - known)

    def of_each(self) -> Losses:
        """Return the losses of each case by the rule of all the others."""
        return {cell: loss for case in self.cases for cell, loss in self._losses({case}).items()}

    def _losses(self, unknown: Set[Case]) -> Losses:
        unseen = {cell: asked for cell, asked in self._asked.items() if cell[0] in unknown}
        problems = set(unseen.values())
        points = tuple(point for point in self._rule.points if point.problem not in problems)
        rule = replace(self._rule, points=points)
        found = {}
        for cell, asked in unseen.items():
            times = self._cells[cell]
            _, point = rule.nearest(asked, self._usable.__contains__) or (0, None)
            named = _PORTABLE if point is None or point.keeps((_PORTABLE,)) else point.implementation
            named = named if named in times else _PORTABLE
            found[cell] = named, times[named] / min(times.values())
        return found


def rule_of(run: Run, measurements: Sequence[Measurement]) -> choice.Rule:
    """Return the rule of a run. Raises RuleError."""
    return choice.parsed(Path(run.run_id), rule_file.rule_of_run(run, measurements), "a tune")


def agreed(*rules: choice.Rule) -> tuple[str, bool]:
    """Return in how far two tunes of one card agree in a sentence, and whether they differ only in ties."""
    ours, theirs = ({point.problem: point for point in rule.points} for rule in rules)
    pairs = [(ours[asked], theirs[asked]) for asked in ours.keys() & theirs.keys()]
    differ = [(a, b) for a, b in pairs if a.implementation != b.implementation]
    tied = sum(a.keeps((b.implementation,)) and b.keeps((a.implementation,)) for a, b in differ)
    ties = f"{len(differ)} are decided differently, {tied} of them within ties (goal: all)"
    return f"Of {len(pairs)} problems that both tunes decide, {ties}.", bool(pairs) and tied == len(differ)


def _times(run: Run, measurements: Sequence[Measurement]) -> dict[Cell, dict[str, float]]:
    """Return the times of what a rule may name, by cell."""
    found: dict[Cell, dict[str, float]] = {}
    for m in measurements:
        is_time = m.metric == "latency_ms" and m.status is Status.OK and m.mode in ("fwd", "fwd_bwd")
        if is_time and m.value and m.timing and not facts_of(m.implementation, run.implementations).precision:
            found.setdefault((m.case, str(m.mode), m.timing), {})[m.implementation] = m.value
    return found


def judged(run: Run, measurements: Sequence[Measurement], corners: Sequence[Measurement] = ()) -> tuple[str, bool]:
    """Return the losses of a tune in a sentence, and whether the goals are reached."""
    tuned = Tuned(run, measurements, corners)
    halves = [tuned.of_half(seed) for seed in range(HALVES)]
    (mean, worst), means = _mean_and_worst(*halves), [_mean_and_worst(half)[0] for half in halves]
    slower = fmean(loss > 1.02 for half in halves for _, loss in half.values())
    words = (
        f"In {HALVES} random halves, cells that the tune had not seen take {mean:.3f} times the best in the mean "
        f"({min(means):.3f} to {max(means):.3f}, goal {MOST_IN_THE_MEAN}), {worst:.3f} at worst (goal {MOST}); "
        f"{slower:.0%} are over 2 % slower. "
        "With all other shapes measured, they take {:.3f} and {:.3f}.".format(*_mean_and_worst(tuned.of_each()))
    )
    return words, mean <= MOST_IN_THE_MEAN and worst <= MOST


def _mean_and_worst(*found: Losses) -> tuple[float, float]:
    every = [loss for losses in found for _, loss in losses.values()]
    return math.exp(fmean(map(math.log, every))), max(every)
