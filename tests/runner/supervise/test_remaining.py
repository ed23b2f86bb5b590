"""The rest of simulated sweeps, whose truth is known: implementations faster and slower than planned, compiled once."""

import random
from functools import cache
from itertools import groupby

import pytest

from results.render.text import time_left
from runner.cells import Cell, estimated_seconds, ordered_cells
from runner.machine.devices import DeviceInfo
from runner.protocol import PROTOCOLS
from runner.supervise.remaining import Expected, Remaining
from runner.sweeps import SWEEPS
from tests.builders import latency

H200 = DeviceInfo("cuda:0", "cuda", "NVIDIA H200", "gpu-0")
CPU = DeviceInfo("cpu", "cpu", "A processor", "cpu")
COMPILED = ("triton_fa2", "triton_fa2_tf32", "gluon_hopper", "gluon_fp8", "flash_attn_4")


@cache
def planned(name: str, device: DeviceInfo) -> list[Cell]:
    """The cells of a sweep with the estimates of a device's plan."""
    sweep, protocol = SWEEPS[name], PROTOCOLS["standard"]
    cells = ordered_cells(sweep.cases(), sweep.implementations, sweep.modes, seed=1, takes_part=sweep.takes_part)
    return [
        Cell(c.case, c.implementation, c.mode, seconds=estimated_seconds(c.case, c.mode, protocol, 2, device, False))
        for c in cells
    ]


def estimates(name: str, device: DeviceInfo, seed: int) -> tuple[list[tuple[float, float]], float]:
    """Estimated and true seconds that are left at the end of each case of a sweep, and those of all of it."""
    cells, protocol, chance = planned(name, device), PROTOCOLS["standard"], random.Random(seed)
    remaining = Remaining(cells, protocol, timings=2)
    speed = {c.implementation: chance.choice((0.15, 0.4, 1.0, 3.0)) for c in cells}  # times the planned call
    seen, took, left, guessed = set(), [], list(cells), []
    for _, case in groupby(cells, key=lambda cell: cell.case):
        case = list(case)
        seconds = compiling = 0.0
        for cell in case:
            call = remaining._call_s[cell] * speed[cell.implementation] * chance.uniform(0.9, 1.1)
            seconds += 0.1 * chance.uniform(0.7, 1.4) + remaining._sampled(call)
            kind = cell.implementation, cell.mode, cell.case.head_dim
            compiling += 1.5 * (cell.implementation in COMPILED and kind not in seen)
            seen.add(kind)
            remaining.measured(cell, latency(cell.implementation, call * 1e3, cell.case, mode=cell.mode))
        remaining.finished(case, seconds + compiling, compiling)
        left = left[len(case) :]
        took.append(seconds + compiling)
        guessed.append(remaining.seconds(left))
    return [(guess, sum(took[at + 1 :])) for at, guess in enumerate(guessed)], sum(took)


@pytest.mark.parametrize(
    ("name", "device"), [("fa_paper", H200), ("fa2_speedup", H200), ("long_context", H200), ("flash_references", CPU)]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_a_tenth_of_a_sweep_its_rest_is_never_estimated_half_again_as_long(name, device, seed):
    found, whole = estimates(name, device, seed)
    later = [guess / rest for guess, rest in found if 0.02 * whole < rest < 0.9 * whole]
    assert later
    assert max(later) <= 1.5
    assert min(later) >= 0.5


@pytest.mark.parametrize(
    ("spent_s", "words"), [(4.0, "about 26 s left"), (10.0, "at least 20 s left"), (600.0, "at least 20 s left")]
)
def test_a_case_that_takes_longer_than_expected_makes_the_rest_a_lower_bound(spent_s: float, words: str) -> None:
    eta_s, bound = Expected(case_s=10.0, after_s=20.0).left(spent_s)
    assert time_left(eta_s, bound=bound) == words


def test_of_a_last_case_that_takes_longer_than_expected_no_time_is_told() -> None:
    eta_s, bound = Expected(case_s=10.0).left(10.0)
    assert (eta_s, time_left(eta_s, bound=bound)) == (None, "longer than estimated")
