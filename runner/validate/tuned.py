"""What a tune is worth on shapes that it has not seen: `python -m runner.validate tune [--first RUN]`.

Half of a run's cases make a rule as `runner tune` does, with nothing but the portable kernels to fall back on, as on a
chip without a record. The other half is decided by that rule: its loss is the time of what the rule names over that of
the fastest correct implementation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from kernels import choice, problem
from results.implementations import facts_of
from results.recommend import rule_file
from results.records import Case, Measurement, Run, Status

SHIPPED = ("h200-real_models", "h100-real_models")
MOST_IN_THE_MEAN, MOST = 1.03, 1.15
_PORTABLE = "triton_fa2"
Cell = tuple[Case, str, str]  # case, mode and timing


def losses(run: Run, measurements: Sequence[Measurement], seed: int = 0) -> dict[Cell, tuple[str, float]]:
    """Tune on a random half of a run's cases; return what the rule names for the others, and its loss.

    Raises RuleError if no rule follows from the half.
    """
    cases = sorted({m.case for m in measurements if m.mode in rule_file.DIRECTIONS}, key=repr)
    known = set(random.Random(seed).sample(cases, (len(cases) + 1) // 2))
    record = rule_file.rule_of_run(run, [m for m in measurements if m.case in known])
    rule = choice.parsed(Path(run.run_id), record, "a tune")
    found = {}
    for (case, mode, timing), times in _times(run, measurements).items():
        if case not in known and _PORTABLE in times:
            asked = problem.of_case(case, rule_file.DIRECTIONS[mode], rule_file.REGIMES[timing])
            _, point = rule.nearest(asked) or (0, None)
            named = _PORTABLE if point is None or point.keeps((_PORTABLE,)) else point.implementation
            named = named if named in times else _PORTABLE
            found[case, mode, timing] = named, times[named] / min(times.values())
    return found


def _times(run: Run, measurements: Sequence[Measurement]) -> dict[Cell, dict[str, float]]:
    """Return the times of what a rule may name, by cell."""
    found: dict[Cell, dict[str, float]] = {}
    for m in measurements:
        is_time = m.metric == "latency_ms" and m.status is Status.OK and m.mode in ("fwd", "fwd_bwd")
        if is_time and m.value and m.timing and not facts_of(m.implementation, run.implementations).precision:
            found.setdefault((m.case, str(m.mode), m.timing), {})[m.implementation] = m.value
    return found


def judged(found: dict[Cell, tuple[str, float]]) -> tuple[str, bool]:
    """Return the losses in a sentence, and whether the goals are reached."""
    every = [loss for _, loss in found.values()]
    mean, worst = math.exp(fmean(map(math.log, every))), max(every)
    words = (
        f"{len(every)} cells that the tune had not seen take {mean:.3f} times the best in the mean (goal "
        f"{MOST_IN_THE_MEAN}), {worst:.3f} at worst (goal {MOST}); {sum(x > 1.02 for x in every)} are over 2 % slower."
    )
    return words, mean <= MOST_IN_THE_MEAN and worst <= MOST
