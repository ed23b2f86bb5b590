"""SAME, FASTER, SLOWER or UNCLEAR: what two latencies and their spread allow to say, and what they could have shown.

The verdict is about the second against the first and comes from an interval of the speedup (first over second) that the
truth leaves to either side with 5 %, as two one-sided tests of equivalence ask (Schuirmann, Journal of Pharmacokinetics
and Biopharmaceutics 15, 1987, 657). It is the wider of two on either side:

1. within rounds: the intervals of both medians, combined on the log scale by the method of variance estimates recovery
   (MOVER: Zou and Donner, Statistics in Medicine 27, 2008, 1693), which keeps their asymmetry;
2. between rounds: Student's t over the medians of the rounds, paired where both were sampled in the same interleaved
   rounds. Samples of one round share its clocks and its place in memory, so only rounds repeat the measurement.

SAME needs the whole interval inside the band of 2 %. FASTER and SLOWER need it beyond the band, and the same interval
at 1 % in place of 10 % must not hold 1, so that of two equal noisy things one in a hundred is called different at most.
Anything else is UNCLEAR. What two runs of the same thing differ by (another load, another chip) is in neither: for
eager times, which move with the host, results.compare.between_runs adds it. What a call may have waited for a core is
in it too, on the side to which the time would be shorter without. Standard library and records only.
"""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from results.compare.between_rounds import (
    PairOfRounds,
    RoundMedians,
    RoundSpread,
    Usual,
    following,
    half_interval,
    rounds,
    spread,
    student,
    usual,
    usual_of_pairs,
)
from results.compare.between_runs import ProcessShift
from results.records import Measurement

BAND = 0.02  # a difference below it is none
# where an interval lies, in the words of a reason
WITHIN, BEYOND = f"within ±{100 * BAND:.0f} %", f"beyond ±{100 * BAND:.0f} %"
ACROSS = f"partly {WITHIN} and partly beyond"
BY_CHANCE = "but its 99 % interval holds 1×"
CERTAINTY = 0.95  # one-sided, for each end of the interval; both ends together give 90 %
NO_CHANCE = 0.995  # one-sided, for the interval that must exclude 1
# presets of runner.protocol by whether they go several times around all implementations of a case
INTERLEAVED, SINGLE = ("standard", "paired", "warm", "tune"), ("quick", "sustained")

# Resolutions of CUDA's event timers in milliseconds, coarsest first: 1.024 us on many chips, 32 ns on an H200.
TICKS_MS = (1.024e-3, 0.512e-3, 0.5e-3, 0.256e-3, 0.128e-3, 0.064e-3, 0.032e-3)

_DIGITS = 5e-6  # relative rounding of a sample, which is stored with six digits
_NO_TICKS = 1e-3  # too small to be told
_LOG_BAND = math.log1p(BAND)
_NORMAL = statistics.NormalDist().inv_cdf
_LARGEST_LOG = 500.0
_SAME_CLOCK = 0.01
_CLOCK = re.compile(r"SM clock of (\d+) MHz")  # the note in journals without the field sm_clock_mhz
_WAITING = re.compile(r"Up to ([\d.]+) % of it is waiting for a core")  # as runner.machine.schedstat notes it
_MOST_WAITING = 0.999
_NOT_APART = RoundSpread(0.0, freedom=1.0)


class Verdict(StrEnum):
    """The second against the first."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    UNCLEAR = "UNCLEAR"


class Doubt(StrEnum):
    """Why a verdict is UNCLEAR."""

    NOISE = "too noisy"
    CLOCK = "clock explains it"
    ALONE = "no unchanged kernel"


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on."""

    verdict: Verdict
    speedup: float | None  # first over second: above 1 the second is faster
    low: float | None  # the speedup is below it with 5 %
    high: float | None  # and above this with 5 %
    detectable: float | None  # the smallest change the two could have shown: 0.03 is 3 %
    basis: str  # origin of the interval, in words
    reason: str  # one sentence
    clocks: tuple[int, int] | None = None  # MHz, where the speedup is in cycles of the SM clock
    apart: float | None = None  # spread between processes that is part of the interval
    cause: Doubt = Doubt.NOISE  # what keeps it from a verdict, if something does
    unshown: bool = False  # whether no unchanged kernel shows what the two processes differ by

    @property
    def doubt(self) -> Doubt | None:
        """Return why it is UNCLEAR; None of a clear verdict."""
        return self.cause if self.verdict is Verdict.UNCLEAR else None


@dataclass(frozen=True)
class Interval:
    """Of the logarithm of the speedup: how far the truth can be to either side."""

    middle: float
    below: float
    above: float
    basis: str


def judge(
    first: Measurement,
    second: Measurement,
    *,
    protocol: str | None = None,
    paired: bool = False,
    like: RoundSpread | None = None,
    apart: ProcessShift | None = None,
) -> Judgement:
    """Return the verdict of the second latency against the first; both have a value.

    `protocol` is the protocol of both runs (None if unknown or different). `paired` says that both were sampled in the
    same interleaved rounds. `like` is the usual spread between rounds of similar cells, and `apart` the additional
    spread between two processes. If a journal does not store the round sizes, thirds of the samples are used as rounds.

    Device times taken at different SM clocks are compared in cycles, and what cycles show must show in time too: work
    bound by memory does not follow the clock. Paired times are not: there the clock is what the two themselves made it.
    """
    ratio = first.value / second.value
    ends = [_interval(first, second, certainty, paired=paired, like=like) for certainty in (CERTAINTY, NO_CHANCE)]
    if None in ends:
        reason = f"{_without_spread(first, second)}: {ratio:.3f}× cannot be told from chance."
        return Judgement(Verdict.UNCLEAR, ratio, None, None, None, "no spread", reason)
    if apart is not None:
        ends = [_widened(found, apart, at) for found, at in zip(ends, (CERTAINTY, NO_CHANCE), strict=True)]
    ends = [_without_waiting(found, first, second) for found in ends]
    clocks = _clocks(first, second)
    remarks = _remarks(first, second, clocks, protocol, paired=paired)
    if like and like.following:
        remarks.append(
            "rounds of this run follow each other, so the interval is wider; a run with more rounds tells more"
        )
    in_time = judgement(ends[0], ends[1], remarks)
    if apart is not None:
        beyond = math.hypot(math.sqrt(apart.spread.variance), apart.offset)
        in_time = replace(in_time, apart=beyond, unshown=not apart.shown)
    if not clocks or paired:
        return _hedged(in_time, first, second)
    shift = math.log(clocks[0] / clocks[1])
    interval, certain = (replace(found, middle=found.middle + shift) for found in ends)
    in_cycles = judgement(interval, certain, remarks)
    in_cycles = replace(in_cycles, clocks=clocks, apart=in_time.apart, unshown=in_time.unshown)
    return _confirmed(in_cycles, in_time.verdict)


def usual_spread(pairs: Iterable[tuple[Measurement, Measurement]], *, paired: bool = False) -> Usual:
    """Return what rounds of such pairs, all of one timing, differ by: for `judge(..., like=usual.near(ms))`."""
    cells = [(first, *_rounds_of(first, second, paired=paired)) for first, second in pairs if first.value]
    known = [(first.value, a, b, together) for first, a, b, together in cells if a and b]
    follow = following((a, b) for _, a, b, together in known if together)
    return usual(((ms, spread(a, b, paired=together)) for ms, a, b, together in known), follow)


def leave_open(cells: Sequence[RoundMedians], pairs: list[PairOfRounds]) -> bool:
    """Tell whether rounds follow each other and so leave a cell without a verdict against the fastest of its case.

    The pairs of the cells join those that the run has so far, because only many pairs together show it.
    """
    fastest, *others = sorted(cells, key=lambda cell: statistics.fmean(cell.logs)) or [RoundMedians((), True)]
    those = [cell for cell in others if len(cell.logs) == len(fastest.logs)]
    new = [(math.exp(statistics.fmean(cell.logs)), fastest, cell) for cell in those]
    pairs += new
    usual = usual_of_pairs(pairs)
    for ms, first, second in new:
        like = usual.near(ms)
        if like and like.following and judgement(*paired_ends(first, second, like)).verdict is Verdict.UNCLEAR:
            return True
    return False


def paired_ends(
    before: RoundMedians,
    after: RoundMedians,
    like: RoundSpread | None,
    apart: RoundSpread = _NOT_APART,
    waited: float = 0.0,
) -> tuple[Interval, Interval]:
    """Return the interval of the speedup for a verdict, and the one that chance leaves less often.

    `apart` is what two processes of the same code differ by in all rounds, `waited` what a busy host may have added.
    """
    middle = statistics.fmean(a - b for a, b in zip(before.logs, after.logs, strict=True))

    def interval(certainty: float) -> Interval:
        between = half_interval(before, after, like, paired=True, certainty=certainty)
        half = math.hypot(between, student(certainty, apart.freedom) * math.sqrt(apart.variance)) + waited
        return Interval(middle, half, half, "")

    return interval(CERTAINTY), interval(NO_CHANCE)


def sampled_in_rounds(protocol: str | None) -> bool:
    """Tell whether a run of that protocol goes several times around all implementations of a case."""
    return _preset(protocol) in INTERLEAVED


def relative_half_interval(measurement: Measurement) -> float | None:
    """Return half the 95 % interval of a latency over its value; None if it has none."""
    if not _has_interval(measurement):
        return None
    return (measurement.ci_high - measurement.ci_low) / 2 / measurement.value


def standard_error(found: Judgement) -> float | None:
    """Return the standard error of the logarithm of a speedup, by its interval; None if it has none."""
    if found.low is None or found.high is None:
        return None
    return (math.log(found.high) - math.log(found.low)) / 2 / _NORMAL(CERTAINTY)


def sm_clock_mhz(measurement: Measurement) -> int | None:
    """Return the SM clock of a measurement; old journals noted it in words, and only one that was held back."""
    if measurement.sm_clock_mhz:
        return round(measurement.sm_clock_mhz)
    noted = _CLOCK.search(measurement.note or "")
    return int(noted[1]) if noted else None


def waiting(measurement: Measurement) -> float:
    """Return how much of a latency may be waiting for a core; 0 where nothing was noted."""
    noted = _WAITING.search(measurement.note or "")
    return min(_MOST_WAITING, float(noted[1]) / 100) if noted else 0.0


def _preset(protocol: str | None) -> str:
    return (protocol or "").split("/")[0]


def judgement(interval: Interval, certain: Interval, remarks: Sequence[str] = ()) -> Judgement:
    """Return the verdict of an interval, and of one that leaves less to chance."""
    low, high = interval.middle - interval.below, interval.middle + interval.above
    by_chance = certain.middle - certain.below <= 0 <= certain.middle + certain.above
    ends, widest = (_ratio(low), _ratio(high)), max(interval.below, interval.above)
    span = f"{ends[0]:.4g}× to {ends[1]:.4g}×"
    if low >= -_LOG_BAND and high <= _LOG_BAND:
        verdict, why = Verdict.SAME, f"all of {span} is {WITHIN}"
    elif low <= _LOG_BAND and high >= -_LOG_BAND:
        verdict, why = Verdict.UNCLEAR, f"{span} is {ACROSS}"
    elif by_chance:
        verdict, why = Verdict.UNCLEAR, f"all of {span} is {BEYOND}, {BY_CHANCE}"
    else:
        verdict = Verdict.FASTER if low > 0 else Verdict.SLOWER
        why = f"all of {span} is {BEYOND}"
    return Judgement(
        verdict,
        speedup=_ratio(interval.middle),
        low=ends[0],
        high=ends[1],
        detectable=math.expm1(min(_LARGEST_LOG, max(_LOG_BAND + widest, certain.below, certain.above))),
        basis=interval.basis,
        reason="; ".join((why, *remarks)) + ".",
    )


def _ratio(log: float) -> float:
    """Return the ratio of a logarithm, within what a float holds: an interval may reach anywhere."""
    return math.exp(max(-_LARGEST_LOG, min(log, _LARGEST_LOG)))


def _interval(
    first: Measurement, second: Measurement, certainty: float, *, paired: bool, like: RoundSpread | None
) -> Interval | None:
    if _has_interval(first) and _has_interval(second):
        return _of_medians(first, second, certainty, paired=paired, like=like)
    if first.std is not None and second.std is not None:
        return _of_means(first, second, certainty)
    return None


def _widened(found: Interval, apart: ProcessShift, certainty: float) -> Interval:
    """Return the interval with what two processes differ by in it, and with any part of what moved all kernels."""
    half = student(certainty, apart.spread.freedom) * math.sqrt(apart.spread.variance)
    below = math.hypot(found.below, half) + max(0.0, apart.offset)
    above = math.hypot(found.above, half) + max(0.0, -apart.offset)
    return Interval(found.middle, below, above, f"{found.basis}, and what the processes differ by")


def _without_waiting(found: Interval, first: Measurement, second: Measurement) -> Interval:
    """Return the interval with what either would be without the time that its process waited for a core."""
    shares = [waiting(m) for m in (first, second)]
    if not any(shares):
        return found
    below, above = (-math.log1p(-share) for share in shares)
    basis = f"{found.basis}, and what a busy host may have added"
    return Interval(found.middle, found.below + below, found.above + above, basis)


def _of_medians(
    first: Measurement, second: Measurement, certainty: float, *, paired: bool, like: RoundSpread | None
) -> Interval:
    middle = math.log(first.value / second.value)
    share = _NORMAL(certainty) / _NORMAL(0.975)  # the intervals at hand are of 95 %
    below_first, above_first = math.log(first.value / first.ci_low), math.log(first.ci_high / first.value)
    below_second, above_second = math.log(second.value / second.ci_low), math.log(second.ci_high / second.value)
    below = share * math.hypot(below_first, above_second)
    above = share * math.hypot(above_first, below_second)
    before, after, together = _rounds_of(first, second, paired=paired)
    if not before or not after:
        return Interval(middle, below, above, "intervals of the medians")
    half = half_interval(before, after, like, paired=together, certainty=certainty)
    kind = "rounds" if before.said and after.said else "thirds"
    basis = f"samples and {'paired ' if together else ''}{kind}{' beside those of like cells' if like else ''}"
    basis += like.wider if like else ""
    ticks = sum(math.log1p(_tick_ms(m.samples) / m.value) for m in (first, second))
    if ticks > _NO_TICKS:
        basis += ", and a tick of the timer on either side"
    return Interval(middle, max(below, half) + ticks, max(above, half) + ticks, basis)


@lru_cache(maxsize=512)  # the fastest of a case is judged against each of the others
def _tick_ms(samples: tuple[float, ...]) -> float:
    """Return the tick of the timer if all samples are multiples of one; 0 if none that is known fits.

    The median of such samples is a multiple too, so the truth can be a tick away however often it was sampled.
    """
    for tick in TICKS_MS:
        if all(abs(s - tick * round(s / tick)) <= _DIGITS * s for s in samples):
            return tick if max(samples) < tick / _DIGITS / 2 else 0.0
    return 0.0


def _rounds_of(
    first: Measurement, second: Measurement, *, paired: bool
) -> tuple[RoundMedians | None, RoundMedians | None, bool]:
    """Return the rounds of both, and whether they are pairs: as many on either side, told in the same way."""
    before, after = rounds(first), rounds(second)
    same = before and after and (len(before.logs), before.said) == (len(after.logs), after.said)
    return before, after, bool(paired and same)


def _of_means(first: Measurement, second: Measurement, certainty: float) -> Interval | None:
    """Return the interval by means; where the number of samples is not said it is taken as 1, the widest interval."""
    means = [m.value if m.mean is None else m.mean for m in (first, second)]
    if min(means) <= 0:
        return None
    errors = [m.std / mean / math.sqrt(m.n or 1) for m, mean in zip((first, second), means, strict=True)]
    half = _NORMAL(certainty) * math.hypot(*errors)
    said = "mean and std" if first.n and second.n else "mean and std, n not stated and taken as 1"
    return Interval(math.log(means[0] / means[1]), half, half, said)


def _has_interval(measurement: Measurement) -> bool:
    low, high = measurement.ci_low, measurement.ci_high
    return None not in (low, high, measurement.value) and 0 < low <= measurement.value <= high


def _without_spread(first: Measurement, second: Measurement) -> str:
    bare = [m for m in (first, second) if not _has_interval(m) and m.std is None]
    if not bare:
        return "One has an interval of its median, the other a standard deviation"
    few = [len(m.samples) for m in bare if m.samples]
    if few:
        return f"{min(few)} samples are too few for an interval"
    return "Both are one printed number" if len(bare) == 2 else "One of them is one printed number"


def _clocks(first: Measurement, second: Measurement) -> tuple[int, int] | None:
    """Return both SM clocks if both device times have one and they differ; wall time is not in cycles of the GPU."""
    clocks = sm_clock_mhz(first), sm_clock_mhz(second)
    if (first.timing, second.timing) != ("kernel", "kernel") or None in clocks:
        return None
    return clocks if abs(clocks[0] / clocks[1] - 1) > _SAME_CLOCK else None


def _remarks(
    first: Measurement, second: Measurement, clocks: tuple[int, int] | None, protocol: str | None, *, paired: bool
) -> list[str]:
    remarks, raw = [], first.value / second.value
    if clocks and paired:
        remarks.append(f"in time; the SM clock was {clocks[0]} and {clocks[1]} MHz, as each drew power")
    elif clocks:
        remarks.append(f"in cycles, as the SM clock was {clocks[0]} and {clocks[1]} MHz ({raw:.3f}× in time)")
    waited = [f"{waiting(m):.0%}" for m in (first, second)]
    if any(map(waiting, (first, second))):
        remarks.append(f"up to {' and '.join(waited)} may be waiting for a core of a busy host")
    alone = [len(m.round_sizes) == 1 if m.round_sizes else _preset(protocol) in SINGLE for m in (first, second)]
    if first.samples and second.samples and any(alone):
        remarks.append(f"one round {'each' if all(alone) else 'on one side'}: how much rounds differ is not known")
    return remarks


def _confirmed(found: Judgement, in_time: Verdict) -> Judgement:
    """Return the verdict, UNCLEAR where cycles differ and time does not show it."""
    if found.verdict in (Verdict.SAME, Verdict.UNCLEAR, in_time):
        return found
    reason = f"{found.verdict} in cycles but {in_time} in time, as work bound by memory would be: {found.reason}"
    return replace(found, verdict=Verdict.UNCLEAR, reason=reason, cause=Doubt.CLOCK)


# throttled sides -> the verdict that throttling alone could explain
_UNPROVEN = {
    (True, False): (Verdict.FASTER, Verdict.SAME),
    (False, True): (Verdict.SLOWER, Verdict.SAME),
    (True, True): (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME),
}


def _hedged(found: Judgement, first: Measurement, second: Measurement) -> Judgement:
    """Return the verdict, UNCLEAR where throttling could have made it up and the clocks to tell are not known."""
    held = ("throttled" in first.flags, "throttled" in second.flags)
    if found.verdict not in _UNPROVEN.get(held, ()) or all(map(sm_clock_mhz, (first, second))):
        return found
    which = {(True, False): "the first was", (False, True): "the second was"}.get(held, "both were")
    reason = f"{found.verdict} as measured, but {which} throttled and a clock is not known: {found.reason}"
    return replace(found, verdict=Verdict.UNCLEAR, reason=reason, cause=Doubt.CLOCK)


def undecided(found: Judgement, command: str) -> Judgement:
    """Return the verdict as UNCLEAR, because no unchanged kernel tells the code from the machine; name the command."""
    reason = (
        f"{found.speedup:.3f}× as fast, but no unchanged kernels are in both runs, so that the machine may have moved "
        f"by as much; `{command}` measures both versions in one run."
    )
    return replace(found, verdict=Verdict.UNCLEAR, reason=reason, cause=Doubt.ALONE)
