"""How sure a win or a speedup is, and which times cannot be what they say."""

import pytest

from results.query.pairing import paired
from results.recommend.certainty import speedup_ranges
from results.recommend.winners import Standing, winners
from results.slice import Filters
from tests.builders import add_run, latency, small_case
from tests.cases import named

SLICE = Filters(gpu="A GPU", mode="fwd", timing="kernel", baseline="slow")
PLACE = ("float16", 128, 64)


@pytest.mark.parametrize("rival,within,standing", named(__file__, "test_a_tie_that_is_too_noisy_decides_nothing"))
def test_a_tie_that_is_too_noisy_decides_nothing(home, opened, rival, within, standing):
    add_run(home, "a", latency("a", 1.0, small_case(), within=within), latency("b", rival, small_case(), within=within))
    won = winners(opened(), SLICE).iloc[0]
    assert (won["winner"], won["standing"]) == ("a", standing)
    assert (won["tied"] == ["a", "b"]) is (standing in (Standing.TIE, Standing.CANNOT_DECIDE))
    assert (won["others"][0]["ratio_low"] is not None) is bool(within)


def test_a_speedup_whose_interval_holds_both_faster_and_slower_is_undecided(home, opened):
    rows = [("slow", 1.2, 0.2), ("noisy", 1.0, 0.2), ("exact", 1.0, 0.001)]
    add_run(home, "a", *(latency(name, value, small_case(), within=half) for name, value, half in rows))
    noisy = speedup_ranges(opened(), SLICE, "noisy")[PLACE]
    assert noisy.low < 1 < noisy.high
    assert not noisy.decided
    printed = (latency(name, value, small_case()) for name, value in (("slow", 1.2), ("exact", 1.0)))
    add_run(home, "b", *printed, created="2026-02-01")
    assert speedup_ranges(opened(), SLICE, "exact")[PLACE].decided, "a source without a spread is taken by its word"


def test_a_range_is_of_the_run_whose_speedup_is_shown(home, opened):
    two = [latency(name, value, small_case(), within=0.01) for name, value in (("slow", 2.0), ("one", 1.0))]
    add_run(home, "fuller", *two, latency("other", 1.0, small_case(), within=0.01))
    two = [latency(name, value, small_case(), within=0.01) for name, value in (("slow", 4.0), ("one", 1.0))]
    add_run(home, "newer", *two, created="2026-02-01")
    shown = next(row for row in paired(opened(), SLICE) if row.number.implementation == "one")
    found = speedup_ranges(opened(), SLICE, "one")[PLACE]
    assert found.low < shown.speedup < found.high


def test_a_time_that_no_gpu_can_have_voids_the_win(home, opened):
    add_run(home, "a", latency("slow", 1.0, small_case()), latency("lies", 1e-6, small_case()), device_type="cuda")
    found = opened()
    won = winners(found, SLICE).iloc[0]
    assert won["winner"] == "lies"
    assert "a GPU needs" in won["void"]
    assert speedup_ranges(found, SLICE, "lies")[PLACE].void == won["void"]
