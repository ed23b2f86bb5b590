"""`python -m runner tune`: an ordinary sweep over the problems of programs or sweeps, which ends in a rule."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from results.files.durable import replace_file
from results.files.journal import RunFolder
from results.levels import flops
from results.programs import Program
from results.recommend import rule_file
from results.records import TIMINGS, Case
from runner.sweeps import SweepError, get
from runner.sweeps.given import MAX_CASES, GivenSweep

TILES = "tiles"  # in place of a name: `kernels.forms.TILES`
NAME = "tune"  # of the sweep: a run of it installs its rule when it ends
QUICK_S = 600.0  # after which --quick stops and keeps what it has
_MODES = {"op": ("fwd", "fwd_bwd"), "decode": ("decode",)}  # by level


def sweep_of(programs: Iterable[Program], names: Iterable[str], tiles: bool) -> tuple[GivenSweep, list[str]]:
    """Return the sweep over the problems of recordings and of sweeps, and sentences on what it leaves out.

    It has every implementation that can serve a call, and with `tiles` their forms; what takes most of a program's time
    comes first. A run has one level. Raises SweepError if nothing can be measured.
    """
    sweeps = [get(name) for name in names]
    levels = {*(["op"] if (programs := list(programs)) else []), *(sweep.level for sweep in sweeps)}
    if not levels <= set(_MODES) or len(levels) > 1:
        raise SweepError(
            "Rules decide calls of attention, as in fa_paper, or over caches, as in decode; a tune has one of both, "
            f"and this asks for {' and '.join(sorted(levels))}."
        )
    level = next(iter(levels), "op")
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
        name=NAME,
        description="The problems that a rule is made of",
        of_level=level,
        given=tuple(cases),
        dtype=tuple(dict.fromkeys(case.dtype for case in cases if case.dtype)),
        implementations=(*own, TILES) if tiles else own,
        baseline=own[0] if own else "torch_sdpa_auto",
        modes=tuple(mode for mode in _MODES[level] if mode in modes),
        timings=TIMINGS,
    )
    return found, left


def finish(folder: RunFolder, export: Path | None = None) -> None:
    """Install the rule that follows from a run, or write it to a file, and say what it holds. Raises RuleError."""
    try:
        rule = rule_file.rule_of_run(folder.run(), folder.read()[0])
    except rule_file.RuleError as nothing:
        print(nothing, file=sys.stderr)
        return
    if export:
        replace_file(export, rule_file.as_text(rule))
    path = export or rule_file.install(rule)
    print(f"{path}: {rule_file.summary(rule)}", file=sys.stderr)
    if not export:
        print("Programs that start now obey it; `python -m runner prove` shows what it is worth.", file=sys.stderr)
