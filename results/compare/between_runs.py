"""How far times of two processes differ beyond what their rounds show.

Eager times: the rounds of a cell are over within a second or so, but a host is busy for longer: all implementations of
a case move together, in every round of it. Of the comparison's own cells, taken a stretch at a time in the order they
were taken, this is what their speedups scatter by beyond their standard errors, about the median of the same
implementation and mode, so that an implementation that changed everywhere is no noise; of controls, which did not
change, about no change at all: a host that became slower moves all latencies. The scatter is read off a quantile, so
that a few cells which truly changed are none either; it comes in bursts, hence few degrees of freedom. As the empirical
null of Efron (Journal of the American Statistical Association 99, 2004, 96), but for each stretch.

Device times: a process keeps what it was given, such as where its commands lie in the host's memory, to its end, and
all rounds of an implementation move together. Only what did not change can tell: what the controls scatter by about
their common median, a stretch of like length at a time, and that median itself. It is what the machine did to all
kernels, but not equally: ours may have moved by all of it or not at all, and the interval holds both. Without
controls, the prior below replaces both, and on one kind of GPU every verdict is UNCLEAR.

Controls are PyTorch's own kernels: where two runs have the same PyTorch on the same GPU, they did not change, and what
their times differ by is the machine. Of the device times of one H200 in two processes, minutes apart and at the same
clock, calls of many short kernels moved by 4 % and of one kernel by 1 % (2026-11), in every round. Standard
library only.
"""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.compare.between_rounds import RoundSpread, stretches
from results.grouping import grouped
from results.records import Run
from results.spread import quantile

LEAST = 12  # fewer cannot tell noise from change
SHARE = 0.85  # share of a stretch that is assumed to be unchanged
FREEDOM = 4.0
# where cells are too few: as much again as the rounds show, the two shipped runs with 504 cells in common say so
AS_ROUNDS = 1.0
CONTROLS = "torch_"  # begins the names of controls
# Device times without controls. Between pairs of the shipped runs PyTorch's own kernels moved by up to 2.2 % (median),
# and by 1.6 to 2.5 % (standard deviation) about it; an audit saw 1.6 to 4.7 % in pairs minutes apart (2026-11).
WITHOUT_CONTROLS = 0.03
_DEVIATIONS = statistics.NormalDist().inv_cdf((1 + SHARE) / 2)  # standard deviations that contain the share


@dataclass(frozen=True)
class Shift:
    """A cell of the comparison."""

    kind: tuple[str, str | None]  # implementation and mode, which change together
    speedup: float  # its logarithm
    error: float  # the standard error of that, by its rounds
    latency_ms: float = 0.0


@dataclass(frozen=True)
class ProcessShift:
    """What two processes differ by beyond their rounds."""

    spread: RoundSpread  # spread of single cells
    offset: float = 0.0  # logarithm of the speedup of what did not change: a cell may have moved by any part of it
    shown: bool = True  # whether unchanged kernels show it; otherwise it is what two processes usually differ by


def beyond_rounds(cells: Sequence[Shift], controls: Sequence[Shift] = ()) -> list[ProcessShift]:
    """Return how each eager time moved with the host, in the order they were measured; controls are among them.

    Without controls, a slower host cannot be distinguished from slower code: all cells together are the control.
    """
    if len(cells) < LEAST:
        prior = 0.0 if controls else WITHOUT_CONTROLS**2
        return [ProcessShift(RoundSpread((AS_ROUNDS * cell.error) ** 2 + prior, FREEDOM)) for cell in cells]
    offset = 0.0 if controls else _median(cells)
    kinds = grouped(cells, lambda cell: cell.kind)
    usual = {kind: _median(of_kind) if controls else offset for kind, of_kind in kinds.items()}
    usual |= dict.fromkeys((control.kind for control in controls), 0.0)
    shifts = [(ProcessShift(_beyond(stretch, usual), offset), len(stretch)) for stretch in stretches(cells)]
    return [shift for shift, count in shifts for _ in range(count)]


def beyond_controls(cells: Sequence[Shift], controls: Sequence[Shift]) -> list[ProcessShift]:
    """Return how each device time moved, by controls alone; the prior where they are too few."""
    if len(controls) < LEAST:
        return [ProcessShift(RoundSpread(WITHOUT_CONTROLS**2, FREEDOM), shown=False)] * len(cells)
    offset = _median(controls)
    usual: defaultdict[Any, float] = defaultdict(lambda: offset)
    cut = stretches(sorted(controls, key=lambda control: control.latency_ms))
    spreads = [_beyond(stretch, usual) for stretch in cut]
    ends = [stretch[0].latency_ms for stretch in cut[1:]]
    return [ProcessShift(spreads[bisect_right(ends, cell.latency_ms)], offset) for cell in cells]


def speak_for_the_machine(first: Run, second: Run) -> bool:
    """Tell whether both runs have the same kernels of PyTorch, so that a difference between those is not the code's."""
    return bool(first.torch) and (first.torch, first.gpu_name) == (second.torch, second.gpu_name)


def is_control(implementation: str) -> bool:
    """Tell whether an implementation is PyTorch's own, and not a pair of two."""
    return implementation.startswith(CONTROLS) and " -> " not in implementation


def _beyond(stretch: Sequence[Shift], usual: Mapping[Any, float]) -> RoundSpread:
    """Take each cell by its own error: one that its rounds show to be sharp tells more than a blurred one."""
    beyond = sorted(((c.speedup - usual[c.kind]) / _DEVIATIONS) ** 2 - c.error**2 for c in stretch)
    return RoundSpread(max(0.0, quantile(beyond, SHARE)), FREEDOM)


def _median(cells: Sequence[Shift]) -> float:
    return statistics.median(cell.speedup for cell in cells)
