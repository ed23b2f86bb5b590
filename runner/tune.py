"""`python -m runner tune`: an ordinary sweep over the problems of programs or sweeps, which ends in a rule."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from results.files.journal import RunFolder
from results.levels import flops
from results.programs import Program
from results.recommend import rule_file
from results.records import TIMINGS, Case
from runner.supervise.job import Cancelled
from runner.sweeps import SweepError, get
from runner.sweeps.given import MAX_CASES, GivenSweep

TILES = "tiles"  # in place of a name: `kernels.forms.TILES`
NAME = "tune"  # of the sweep: a run of it installs its rule when it ends
CALLS = "calls"  # of the sweep over the calls of a recording, which installs no rule
CORNERS = "corners"  # a sweep of shapes that a rule of sweeps holds in addition, near to any call
QUICK_S = 600.0  # after which --quick stops and keeps what it has; all levels share it
_MODES = {"op": ("fwd", "fwd_bwd"), "decode": ("decode",)}  # by level


def by_level(programs: Sequence[str], names: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Return files of recordings and names of sweeps for one run of each level. Raises SweepError."""
    levels: dict[str, list[str]] = {"op": []} if programs else {}
    for name in names:
        levels.setdefault(get(name).level, []).append(name)
    if others := levels.keys() - _MODES.keys():
        raise SweepError(
            "Rules decide calls of attention, as in fa_paper, or over caches, as in decode, and nothing of level "
            f"{' or '.join(sorted(others))}."
        )
    return [(programs if level == "op" else (), found) for level, found in levels.items()]


def sweep_of(
    programs: Iterable[Program], names: Iterable[str] = (), tiles: bool = False, name: str = CALLS
) -> tuple[GivenSweep, list[str]]:
    """Return the sweep over the problems of recordings and of sweeps, and sentences on what it leaves out.

    It has every implementation that can serve a call, and with `tiles` their forms; what takes most of a program's time
    comes first. All have one level, see `by_level`. Raises SweepError if nothing can be measured.
    """
    sweeps = [get(name) for name in names]
    level = next((sweep.level for sweep in sweeps), "op")
    sweeps += [get(CORNERS)] if sweeps and level == "op" else []
    weights: Counter[Case] = Counter()
    modes: set[str] = set()
    left: list[str] = []
    for program in programs:
        left += program.left_out
        for call in program.tuned:
            weights[call.case] += int(call.count * (flops(call.case, call.mode) or 1))
            modes.add(call.mode)
    for sweep in sweeps:
        weights.update({case: int(flops(case, _MODES[level][0]) or 1) for case in sweep.cases()})
        modes |= set(_MODES[level]) & set(sweep.modes)
    if not weights:
        raise SweepError(" ".join(["The recording has no call that a sweep measures.", *left]))
    cases = [case for case, _ in weights.most_common(MAX_CASES)]
    if len(weights) > MAX_CASES:
        left.append(f"{len(weights) - MAX_CASES} problems beyond the {MAX_CASES:,} that take most of the time.")
    own = sum(rule_file.OVER_CACHES.values(), ()) if level == "decode" else ()  # without a name all: runner.plan.chosen
    found = GivenSweep(
        name=name,
        description="The calls of programs and the cases of sweeps",
        of_level=level,
        given=tuple(cases),
        dtype=tuple(dict.fromkeys(case.dtype for case in cases if case.dtype)),
        implementations=(*own, TILES) if tiles else own,
        baseline=own[0] if own else "torch_sdpa_auto",
        modes=tuple(mode for mode in _MODES[level] if mode in modes),
        timings=TIMINGS,
    )
    return found, left


class OutOfTime(Cancelled):
    """The time of a quick tune is over; its rule holds what was measured."""


def finish(folder: RunFolder, export: Path | None = None) -> None:
    """Install the rule that follows from a run, or write it to a file, and say what it holds. Raises RuleError."""
    try:
        rule = rule_file.rule_of_run(folder.run(), folder.read()[0])
    except rule_file.RuleError as nothing:
        print(nothing, file=sys.stderr)
        return
    path = rule_file.install(rule, export)
    print(f"{path}: {rule_file.summary(rule)}", file=sys.stderr)
    if not export:
        print("Programs that start now obey it; `python -m runner prove` shows what it is worth.", file=sys.stderr)
