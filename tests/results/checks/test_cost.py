"""What the checks cost is bounded by the number of rows, whatever the numbers in them are."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from results.checks import check
from results.records import Measurement, Run, Status
from tests.builders import odd_rows, small_case, timed

Runs = list[tuple[Run, Sequence[Measurement]]]
SAMPLES = tuple(1 + number / 8 for number in range(12))


def _odd(count: int) -> Runs:
    return [(Run("r1", "upload", gpu_name="NVIDIA H200"), odd_rows(random.Random(1), count))]


def _flat(count: int) -> Runs:
    return [(Run("r1", "upload"), [timed(0.4, case=small_case(128 + number)) for number in range(count)])]


def _claims(count: int) -> Runs:
    rows = []
    for number in range(count // 2):
        case = replace(small_case(), batch=1 + number)
        rows.append(timed(1.0, case=case, implementation="x"))
        fields = {"mode": "fwd", "value": 2.0, "baseline": "y", "printed": "2.00"}
        rows.append(Measurement("r1", case, "x", "speedup", Status.OK, **fields))
        rows.append(timed(3.0, case=case, implementation="y"))
    return [(Run("r1", "upload"), rows)]


def _copies(count: int) -> Runs:
    facts = {"value": sorted(SAMPLES)[6], "samples": SAMPLES, "n": len(SAMPLES)}
    row = replace(timed(1.0), **facts)
    return [
        (Run(f"r{at}", "upload"), [replace(row, run_id=f"r{at}", implementation=f"x{n}") for n in range(count // 40)])
        for at in range(40)
    ]


def _calls(runs: Runs) -> int:
    """Count the calls of functions that a check makes, which does not depend on how busy the machine is."""
    count = 0

    def look(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        check(runs)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("runs_of", [_odd, _flat, _claims, _copies], ids=lambda made: made.__name__.strip("_"))
def test_a_check_costs_as_much_as_it_has_rows(runs_of: Callable[[int], Runs]) -> None:
    _calls(runs_of(400))  # fills caches of what does not depend on rows
    few, many = _calls(runs_of(100)), _calls(runs_of(400))
    assert many < 8 * few
    assert many < 5000 * 400
