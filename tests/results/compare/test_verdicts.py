"""Verdicts that hold under noise, in time and in cycles, and say what they rest on."""

import math
import random
from dataclasses import replace

import pytest

from results.compare.verdicts import BAND, INTERLEAVED, SINGLE, Verdict, judge, usual_spread
from results.records import Measurement
from results.spread import spread
from runner.protocol import PAIRED, PROTOCOLS, TUNE, WARM
from tests.builders import STANDARD, sampled, timed, verdict
from tests.cases import cases


def scaled(measurement: Measurement, factor: float) -> Measurement:
    numbers = ("value", "mean", "std", "p20", "p80", "ci_low", "ci_high")
    changed = {name: getattr(measurement, name) * factor for name in numbers}
    return replace(measurement, **changed, samples=tuple(sample * factor for sample in measurement.samples))


@pytest.mark.parametrize(
    "times,expected", [(0.9, "SLOWER"), (0.97, "SLOWER"), (1.0, "SAME"), (1.005, "SAME"), (1.05, "FASTER")]
)
@pytest.mark.parametrize("paired", [True, False])
def test_a_quiet_difference_gets_its_verdict(times, expected, paired):
    first, second = sampled(times, seed=1), sampled(1.0, seed=2)
    found = judge(first, second, protocol=STANDARD, paired=paired)
    assert found.verdict == expected
    assert found.low <= times <= found.high
    assert found.speedup == pytest.approx(times, rel=0.005)


def test_a_difference_at_the_edge_of_the_band_is_unclear_and_the_other_way_round_mirrors_it():
    assert verdict(sampled(1 + BAND, seed=1), sampled(1.0, seed=2)) == "UNCLEAR"
    first, second = sampled(1.08, rounds=(1, 1.01, 1.02), seed=1), sampled(1.0, noise=0.02, seed=2)
    there, back = judge(first, second), judge(second, first)
    assert (there.verdict, back.verdict) == (Verdict.FASTER, Verdict.SLOWER)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.detectable == pytest.approx(back.detectable)


def test_rounds_that_differ_make_a_difference_unclear_that_the_samples_alone_would_show():
    steady, jumping = sampled(1.06, seed=1), sampled(1.0, rounds=(1.0, 1.05, 1.1), seed=2)
    without_rounds = [replace(m, samples=()) for m in (steady, sampled(1.0, seed=2))]
    assert verdict(*without_rounds) == "FASTER"
    assert verdict(steady, jumping) == "UNCLEAR"


def test_a_drift_that_both_share_cancels_in_paired_rounds_only():
    drift = (1.0, 1.06, 1.12)
    first, second = sampled(1.15, rounds=drift, noise=0.001, seed=1), sampled(1.0, rounds=drift, noise=0.001, seed=2)
    pairs = judge(first, second, paired=True), judge(first, second, paired=False)
    spans = [found.high / found.low for found in pairs]
    assert spans[0] < spans[1]
    assert [str(found.verdict) for found in pairs] == ["FASTER", "UNCLEAR"]


@pytest.mark.parametrize("noise,between", [(0.005, 0.002), (0.02, 0.01), (0.02, 0.03)])
@pytest.mark.parametrize("paired", [True, False])
def test_no_difference_is_hardly_ever_called_one_and_the_interval_holds_the_truth(noise, between, paired):
    rng = random.Random(f"{noise}/{between}")
    wrong = covered = 0
    for seed in range(150):
        rounds = [tuple(math.exp(rng.gauss(0, between)) for _ in range(3)) for _ in range(2)]
        pair = [sampled(1.0, rounds=each, noise=noise, seed=2 * seed + n) for n, each in enumerate(rounds)]
        found = judge(*pair, paired=paired)
        wrong += found.verdict in (Verdict.FASTER, Verdict.SLOWER)
        covered += found.low <= 1.0 <= found.high
    assert wrong <= 5
    assert covered >= 127  # of 150, where 90 % make 135


def test_the_smallest_change_that_could_have_been_seen_is_where_the_verdict_turns():
    first, second = sampled(1.0, noise=0.02, rounds=(1, 1.01, 0.995), seed=1), sampled(1.0, noise=0.02, seed=2)
    level = scaled(second, first.value / second.value)  # no difference left
    seen = judge(first, level).detectable
    assert BAND < seen < 0.2
    assert verdict(first, scaled(level, 1 / (1 + seen * 1.02))) == "FASTER"
    assert verdict(first, scaled(level, 1 / (1 + seen * 0.90))) == "UNCLEAR"


def test_a_bare_number_is_never_a_verdict_and_no_interval_too_wide_to_be_said():
    found = judge(timed(3.0, printed="3.0"), timed(1.0, printed="1.0"))
    assert (found.verdict, found.speedup, found.low, found.detectable) == (Verdict.UNCLEAR, 3.0, None, None)
    assert "one printed number" in found.reason
    assert "samples are too few" in judge(timed(1.0, samples=(1.0, 1.0), n=2), timed(2.0)).reason
    assert verdict(sampled(1.0), timed(2.0)) == "UNCLEAR"
    assert "the other a standard deviation" in judge(replace(sampled(1.0), std=None), timed(2.0, std=0.1)).reason
    far = judge(timed(1e-99, std=1e99, n=1), timed(1e99, std=1e99, n=1))
    assert (far.verdict, far.low < far.speedup < far.high) == ("UNCLEAR", True)


def test_means_without_a_number_of_samples_are_taken_as_one_sample():
    first, second = timed(1.0, mean=1.0, std=0.02), timed(0.9, mean=0.9, std=0.02)
    unsaid = judge(first, second)
    said = judge(replace(first, n=100), replace(second, n=100))
    assert (unsaid.verdict, said.verdict) == (Verdict.FASTER, Verdict.FASTER)
    assert unsaid.high / unsaid.low > said.high / said.low
    assert "n not stated" in unsaid.basis
    assert verdict(timed(1.0, std=0.2), timed(0.9, std=0.2)) == "UNCLEAR"
    assert verdict(timed(1.0, std=0.2, n=10_000), timed(0.9, std=0.2, n=10_000)) == "FASTER"


def ticking(ms: float, tick_ms: float, seed: int):
    """What a coarse timer reads of thirty equal calls."""
    dice = random.Random(seed)
    samples = [tick_ms * math.floor(ms / tick_ms + dice.random()) for _ in range(30)]
    found = spread(samples)
    return replace(timed(found["value"], round_sizes=(10, 10, 10)), **found)


@pytest.mark.parametrize("seed", range(8))
def test_a_timer_of_a_microsecond_cannot_say_that_20_us_and_21_us_are_the_same(seed):
    pair = [ticking(ms, 1.024e-3, seed) for ms in (0.0200, 0.0210)]
    assert verdict(*pair) == "UNCLEAR"
    assert "a tick of the timer" in judge(*pair).basis


def test_a_fine_timer_widens_no_interval_of_a_long_call():
    pair = [ticking(2.0, 3.2e-5, seed) for seed in (1, 2)]
    assert verdict(*pair) == "SAME"
    assert "tick" not in judge(*pair).basis


def test_the_presets_are_those_of_the_runner():
    rounds = {protocol.name: protocol.rounds for protocol in (*PROTOCOLS.values(), PAIRED, WARM, TUNE)}
    assert {name for name, number in rounds.items() if number > 1} == set(INTERLEAVED)
    assert {name for name, number in rounds.items() if number == 1} == set(SINGLE)


def in_rounds(parts: list[list[float]], **fields) -> Measurement:
    """A latency whose journal says which samples each round took."""
    found = spread([sample for part in parts for sample in part])
    return replace(timed(found["value"], **fields), **found, round_sizes=tuple(len(part) for part in parts))


def test_rounds_of_the_journal_count_five_show_more_than_three_and_a_single_one_says_so():
    steps = [[1.0, 1.001] * 3, [1.004, 1.005] * 12, [1.0, 1.001] * 3]
    known, blurred = in_rounds(steps), replace(in_rounds(steps), round_sizes=())
    other = in_rounds([[1.0, 1.001] * 6] * 3)
    found, thirds = judge(known, other), judge(blurred, other)
    assert found.basis == "samples and rounds"
    assert thirds.basis == "samples and thirds"
    assert found.high / found.low > thirds.high / thirds.low
    rng = random.Random(5)
    parts = [[math.exp(rng.gauss(0, 0.004)) for _ in range(8)] for _ in range(5)]
    five, three = in_rounds(parts), in_rounds(parts[:3])
    assert judge(five, five, paired=False).detectable < judge(three, three, paired=False).detectable
    one, three = in_rounds([[1.0, 1.001] * 10]), in_rounds([[1.0, 1.001] * 4] * 3)
    assert "one round on one side" in judge(one, three, protocol=STANDARD).reason
    assert "one round each" in judge(one, one, protocol=STANDARD).reason
    pair = sampled(1.5, seed=1), sampled(1.0, seed=2)
    assert "one round" in judge(*pair, protocol="quick/1").reason
    assert "one round" not in judge(*pair, protocol=STANDARD).reason


def test_what_is_usual_for_like_cells_steadies_a_spread_that_three_rounds_found_by_chance():
    pairs = [
        (sampled(1.0, rounds=_drift(seed, 0.004), noise=0.002, seed=seed), sampled(1.0, noise=0.002, seed=seed + 500))
        for seed in range(60)
    ]
    like = usual_spread(pairs).near(1.0)
    assert like.freedom > 2
    wild = sampled(1.03, rounds=(1.0, 1.008, 1.0), noise=1e-4, seed=1), sampled(1.0, noise=1e-4, seed=2)
    alone, beside = judge(*wild), judge(*wild, like=like)
    assert beside.high - beside.low < 0.9 * (alone.high - alone.low)
    assert "beside those of like cells" in beside.basis
    assert usual_spread(pairs[:5]).near(1.0) is None
    drifting = sampled(1.05, rounds=(1.0, 1.08, 1.0), noise=0.001, seed=1), wild[1]
    assert judge(*drifting, like=like).verdict is Verdict.UNCLEAR, "its rounds are not those of like cells"


def _drift(seed: int, share: float) -> tuple[float, ...]:
    rng = random.Random(f"drift {seed}")
    return tuple(math.exp(rng.gauss(0, share)) for _ in range(3))


def clocked(ms: float, mhz: int | None, **fields) -> Measurement:
    note = f"The GPU was held back by its power limit to an SM clock of {mhz} MHz." if mhz else None
    return sampled(ms, note=note, flags=("throttled",) if mhz else (), **fields)


def test_times_are_compared_in_cycles_where_clocks_are_known_and_rounds_are_not_paired():
    found = judge(clocked(1.0, 1980, seed=1), clocked(1.2, 1650, seed=2))
    assert (found.verdict, found.clocks) == (Verdict.SAME, (1980, 1650))
    assert "in cycles" in found.reason
    assert judge(clocked(1.0, 1980, seed=1), clocked(1.2, 1975, seed=2)).clocks is None
    assert judge(clocked(1.0, 1980, timing="eager"), clocked(1.2, 1650, timing="eager")).clocks is None
    first = replace(sampled(1.0, seed=1), sm_clock_mhz=1980.0)
    second = replace(sampled(1.2, seed=2), sm_clock_mhz=1650.0, note="held back to an SM clock of 1980 MHz.")
    assert judge(first, second).clocks == (1980, 1650)
    paired = judge(first, second, paired=True)
    assert (paired.verdict, paired.clocks) == (Verdict.SLOWER, None)
    assert "1980 and 1650 MHz" in paired.reason
    second = replace(sampled(1.0, seed=2), sm_clock_mhz=1650.0)
    found = judge(first, second)
    assert (found.verdict, found.doubt) == ("UNCLEAR", "clock explains it")
    assert "FASTER in cycles but SAME in time" in found.reason
    assert judge(timed(1.0), timed(2.0)).doubt == "too noisy"
    assert judge(first, first).doubt is None


@pytest.mark.parametrize(
    "throttled,speedup,expected", cases(__file__, "test_what_throttling_could_have_made_up_is_no_verdict")
)
def test_what_throttling_could_have_made_up_is_no_verdict(throttled, speedup, expected):
    flags = [("throttled",) if throttled in (side, "both") else () for side in ("first", "second")]
    first, second = sampled(speedup, flags=flags[0], seed=1), sampled(1.0, flags=flags[1], seed=2)
    found = judge(first, second)
    assert found.verdict == expected
    assert ("throttled" in found.reason) == (expected == "UNCLEAR")
