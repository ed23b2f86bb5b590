"""SAME, FASTER, SLOWER or UNCLEAR: what two latencies and their spread allow to say, and what they could have shown.

The verdict is about the second against the first and comes from an interval of the speedup (first over second):

1. within rounds: the 95 % intervals of both medians, combined on the log scale by the method of variance estimates
   recovery (MOVER: Zou and Donner, Statistics in Medicine 27, 2008, 1693), which keeps their asymmetry;
2. between rounds: Student's t over the medians of the rounds, paired where both were sampled in the same interleaved
   rounds. Samples of one round share its clocks and its place in memory, so only rounds repeat the measurement.

The wider end of the two counts on either side. FASTER and SLOWER need the whole interval beyond the band of 2 %, SAME
needs it inside; anything else is UNCLEAR. What two runs of the same thing differ by (another load, another chip) is in
neither.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from results.records import Measurement

BAND = 0.02  # a difference below it is none
ROUNDS = {"quick": 1, "standard": 3}  # of a run's protocol, as runner.protocol says it

_LOG_BAND = math.log1p(BAND)
_NORMAL = 1.96  # 97.5 % of the normal distribution
_STUDENT_2 = 4.303  # 97.5 % of Student's t with 2 degrees of freedom: three rounds
_LEAST_SAMPLES = 6  # fewer have no 95 % interval of the median
_CLOCK = re.compile(r"SM clock of (\d+) MHz")  # as runner.telemetry notes it
_SAME_CLOCK = 0.01


class Verdict(StrEnum):
    """The second against the first."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on."""

    verdict: Verdict
    speedup: float | None  # first over second: above 1 the second is faster
    low: float | None  # 95 % interval of the speedup
    high: float | None
    detectable: float | None  # the smallest change the two could have shown: 0.03 is 3 %
    basis: str  # what the interval comes from
    reason: str  # one sentence
    clocks: tuple[int, int] | None = None  # MHz, where the speedup is in cycles of the SM clock


@dataclass(frozen=True)
class _Interval:
    """Of the logarithm of the speedup."""

    middle: float
    low: float
    high: float
    basis: str


def judge(first: Measurement, second: Measurement, *, protocol: str | None = None, paired: bool = False) -> Judgement:
    """The verdict of the second latency against the first; both have a value.

    `protocol` is that of their runs (None: not said or not the same); `paired` says that both were sampled in the same
    interleaved rounds. The rounds' boundaries are not recorded: the thirds of the samples stand for three rounds, which
    is exact for slow calls, where every round takes as many, and otherwise blurs them a little.
    """
    if not first.value or not second.value:
        return Judgement(Verdict.UNCLEAR, None, None, None, None, "nothing", "A latency of 0 cannot be compared.")
    ratio = first.value / second.value
    interval = _interval(first, second, paired=paired)
    if interval is None:
        reason = f"{_without_spread(first, second)}: {ratio:.3f}x cannot be told from chance."
        return Judgement(Verdict.UNCLEAR, ratio, None, None, None, "no spread", reason)
    clocks = _clocks(first, second)
    if clocks:
        shift = math.log(clocks[0] / clocks[1])
        interval = replace(interval, **{end: getattr(interval, end) + shift for end in ("middle", "low", "high")})
    found = _judgement(interval, _remarks(first, second, clocks, protocol))
    return _hedged(replace(found, clocks=clocks), first, second)


def sampled_in_rounds(protocol: str | None) -> bool:
    """Whether a run of that protocol goes several times around all implementations of a case."""
    return _rounds(protocol) > 1


def relative_half_interval(measurement: Measurement) -> float | None:
    """Half the 95 % interval of a latency over its value; None if it has none."""
    if not _has_interval(measurement):
        return None
    return (measurement.ci_high - measurement.ci_low) / 2 / measurement.value


def _rounds(protocol: str | None) -> int:
    """0 where it is not said."""
    return ROUNDS.get((protocol or "").split("/")[0], 0)


def _judgement(interval: _Interval, remarks: Sequence[str]) -> Judgement:
    low, high = interval.low, interval.high
    span = f"{math.exp(low):.4g}x to {math.exp(high):.4g}x"
    if low > _LOG_BAND:
        verdict, why = Verdict.FASTER, f"all of {span} is beyond the band of {BAND:.0%}"
    elif high < -_LOG_BAND:
        verdict, why = Verdict.SLOWER, f"all of {span} is beyond the band of {BAND:.0%}"
    elif low >= -_LOG_BAND and high <= _LOG_BAND:
        verdict, why = Verdict.SAME, f"all of {span} is inside the band of {BAND:.0%}"
    else:
        verdict, why = Verdict.UNCLEAR, f"{span} is partly inside and partly outside the band of {BAND:.0%}"
    half = max(interval.middle - low, high - interval.middle)
    return Judgement(
        verdict,
        speedup=math.exp(interval.middle),
        low=math.exp(low),
        high=math.exp(high),
        detectable=math.expm1(_LOG_BAND + half),
        basis=interval.basis,
        reason="; ".join((why, *remarks)) + ".",
    )


def _interval(first: Measurement, second: Measurement, *, paired: bool) -> _Interval | None:
    if _has_interval(first) and _has_interval(second):
        return _of_medians(first, second, paired=paired)
    if first.std is not None and second.std is not None:
        return _of_means(first, second)
    return None


def _of_medians(first: Measurement, second: Measurement, *, paired: bool) -> _Interval:
    middle = math.log(first.value / second.value)
    below_first, above_first = math.log(first.value / first.ci_low), math.log(first.ci_high / first.value)
    below_second, above_second = math.log(second.value / second.ci_low), math.log(second.ci_high / second.value)
    low, high = middle - math.hypot(below_first, above_second), middle + math.hypot(above_first, below_second)
    if min(len(first.samples), len(second.samples)) < _LEAST_SAMPLES or min(*first.samples, *second.samples) <= 0:
        return _Interval(middle, low, high, "intervals of the medians")
    half = _between_rounds(_log_thirds(first.samples), _log_thirds(second.samples), paired=paired)
    kind = "paired rounds" if paired else "rounds"
    return _Interval(middle, min(low, middle - half), max(high, middle + half), f"samples and {kind}")


def _of_means(first: Measurement, second: Measurement) -> _Interval | None:
    """Where the number of samples is not said it is taken as 1, which gives the widest interval."""
    means = [m.value if m.mean is None else m.mean for m in (first, second)]
    if min(means) <= 0:
        return None
    errors = [m.std / mean / math.sqrt(m.n or 1) for m, mean in zip((first, second), means, strict=True)]
    middle, half = math.log(means[0] / means[1]), _NORMAL * math.hypot(*errors)
    said = "mean and std" if first.n and second.n else "mean and std, n not said and taken as 1"
    return _Interval(middle, middle - half, middle + half, said)


def _log_thirds(samples: Sequence[float]) -> list[float]:
    cuts = [round(len(samples) * part / 3) for part in range(4)]
    return [math.log(statistics.median(samples[cuts[i] : cuts[i + 1]])) for i in range(3)]


def _between_rounds(first: Sequence[float], second: Sequence[float], *, paired: bool) -> float:
    """Half the interval of the difference of the rounds' mean; unpaired with the least degrees of freedom."""
    if paired:
        spread = statistics.stdev(a - b for a, b in zip(first, second, strict=True))
    else:
        spread = math.hypot(statistics.stdev(first), statistics.stdev(second))
    return _STUDENT_2 * spread / math.sqrt(3)


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
    """Both SM clocks if both device times have one and they differ; wall time is not in cycles of the GPU."""
    if (first.timing, second.timing) != ("kernel", "kernel"):
        return None
    found = [_CLOCK.search(m.note or "") for m in (first, second)]
    if not all(found):
        return None
    clocks = (int(found[0][1]), int(found[1][1]))
    return clocks if abs(clocks[0] / clocks[1] - 1) > _SAME_CLOCK else None


def _remarks(
    first: Measurement, second: Measurement, clocks: tuple[int, int] | None, protocol: str | None
) -> list[str]:
    remarks = []
    if clocks:
        raw = first.value / second.value
        remarks.append(f"in cycles, as the SM clock was {clocks[0]} and {clocks[1]} MHz ({raw:.3f}x in time)")
    if first.samples and second.samples and _rounds(protocol) == 1:
        remarks.append("one round each: how much rounds differ is not known")
    return remarks


# which sides throttled -> what their being held back could have made up
_UNPROVEN = {
    (True, False): (Verdict.FASTER, Verdict.SAME),
    (False, True): (Verdict.SLOWER, Verdict.SAME),
    (True, True): (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME),
}


def _hedged(found: Judgement, first: Measurement, second: Measurement) -> Judgement:
    """UNCLEAR where throttling could have made the verdict up and the clocks that would tell are not known."""
    held = tuple("throttled" in m.flags for m in (first, second))
    if found.verdict not in _UNPROVEN.get(held, ()) or all(_CLOCK.search(m.note or "") for m in (first, second)):
        return found
    which = {(True, False): "the first was", (False, True): "the second was"}.get(held, "both were")
    reason = f"{found.verdict} as measured, but {which} throttled and a clock is not known: {found.reason}"
    return replace(found, verdict=Verdict.UNCLEAR, reason=reason)
