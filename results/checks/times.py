"""Times that contradict each other, or that something else than the work has set."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from results import levels
from results.checks.finding import DECLARED, Found, Numbers, printed_range, said
from results.compare.verdicts import Judgement, Verdict, judge, relative_half_interval, sampled_in_rounds
from results.records import Measurement

PROPORTIONS = {"backward_over_forward": (1.0, 6.0), "not_the_sum": (0.8, 1.25)}
FLAT = 1.25  # slowest over fastest of times that should have grown
STRETCH = 4  # times the seqlen: 16 times the work, with a window 4 times
TWICE, FALLEN = 2, 0.8  # times the seqlen in less than this share of the time
LAUNCHES_MS = 0.5  # launch overhead of a call with many kernels
AHEAD = 1.15  # times the rate at half and at twice the length; kernels on an H200 were at most 1.07 times ahead
SETTLED_MS = 0.1  # a launch no longer counts
# A plain call may find in L2 what the timing of kernels reads from memory, which matters most where reading is all the
# work. In the shipped runs no plain call is below 0.96 of its kernels.
WARM, WARM_BY_OPERATIONS = 0.5, 0.7
NOISE = 0.10  # standard deviation over mean
UNCERTAIN = 0.05  # half the 95 % interval over the median
FAR = 1.5  # times as fast


def whole_below_part(numbers: Numbers) -> Found:
    """Forward and backward together take less than one of them alone."""
    for modes in numbers.modes():
        whole = modes.get("fwd_bwd")
        parts = [modes[mode] for mode in ("fwd", "bwd") if mode in modes]
        part = max(parts, key=lambda m: m.value, default=None)
        below = whole and part and printed_range(whole)[1] < printed_range(part)[0]
        if below and not _can_be_chance(numbers, part, whole):
            known = part.std is not None and whole.std is not None
            std = f" (standard deviations {whole.std:g} and {part.std:g} ms)" if known else ""
            yield said("whole_below_part", whole, part, std=std)


def out_of_proportion(numbers: Numbers, rule: str, whole: str, *parts: str) -> Found:
    """The times of a mode are far from those of its parts, wherever in their intervals all of them are.

    A backward over its forward is 2.5 by the operations; forward and backward together are their sum.
    """
    low, high = PROPORTIONS[rule]
    for modes in numbers.modes():
        if not {whole, *parts} <= modes.keys() or _of_host(modes[whole]):
            continue
        m, rows = modes[whole], [modes[part] for part in parts]
        least, most = _least_most(m)
        below, above = (sum(ends) for ends in zip(*map(_least_most, rows), strict=True))
        if least > high * above or most < low * below:
            why, total = DECLARED[rule]["above" if least > high * above else "below"], sum(part.value for part in rows)
            yield said(rule, m, *rows, times=m.value / total, total=total, why=why)


def flat_over_seqlen(numbers: Numbers) -> Found:
    """Time stays while the sequence, and the work with it, grows: launches and fixed costs set it."""
    for rows in numbers.over_seqlen("latency_ms"):
        flat = () if _of_host(rows[0]) else _longest_flat(rows)
        if flat:
            low, high = min(m.value for m in flat), max(m.value for m in flat)
            growth, seqlen = _work(flat[-1]) / _work(flat[0]), flat[-1].case.seqlen_q
            yield said("flat", *flat, low=low, high=high, seqlen=seqlen, growth=growth)


def falls_with_work(numbers: Numbers) -> Found:
    """Time falls while the sequence, and the work with it, grows."""
    for rows in numbers.over_seqlen("latency_ms"):
        for shorter, longer in zip(rows, rows[1:], strict=False):
            grown = longer.case.seqlen_q >= TWICE * shorter.case.seqlen_q and not _of_host(longer)
            if grown and shorter.value > LAUNCHES_MS and _least_most(longer)[1] < FALLEN * _least_most(shorter)[0]:
                yield said("falls_with_work", longer, shorter, times=_work(longer) / _work(shorter))


def out_of_line(numbers: Numbers) -> Found:
    """One length is worked through at a rate well above that of the shorter and of the longer one.

    Only where memory grows with seqlen: score matrices that just fit L2 are that much faster than longer ones.
    """
    for rows in numbers.over_seqlen("latency_ms"):
        if numbers.facts(rows[0]).memory.growth != "linear":
            continue
        steady = [m for m in rows if m.value > SETTLED_MS and m.timing != "eager"]
        for shorter, m, longer in zip(steady, steady[1:], steady[2:], strict=False):
            least_ahead = min(_work(m) / _work(other) * _least_most(other)[0] for other in (shorter, longer))
            if AHEAD * _least_most(m)[1] < least_ahead:
                by = min(_work(m) / _work(other) * other.value for other in (shorter, longer)) / m.value
                yield said("out_of_line", m, shorter, longer, by=by)


def eager_below_kernel(numbers: Numbers) -> Found:
    """A plain call, launches included, takes far less than its kernels alone."""
    for rows in numbers.grouped(attrgetter("run_id", "case", "implementation", "mode"), "latency_ms").values():
        timings = {m.timing: m for m in rows}
        eager, kernel = timings.get("eager"), timings.get("kernel")
        warm = WARM if kernel and levels.level_of(kernel.case).memory_bound else WARM_BY_OPERATIONS
        if eager and kernel and _least_most(eager)[1] < warm * _least_most(kernel)[0]:
            yield said("eager_below_kernel", eager, kernel, times=eager.value / kernel.value)


def win_within_spread(numbers: Numbers) -> Found:
    """The fastest of a case is ahead by less than its and the other's spread."""
    for rows in numbers.grouped(attrgetter("run_id", "case", "timing", "mode"), "latency_ms").values():
        best = min(rows, key=lambda m: m.value)
        for other in rows:
            if other is best or _of_host(best) or _far_apart(best, other):
                continue
            if why := _within_spread(numbers, other, best):
                yield said("within_spread", best, other, times=other.value / best.value, why=why)


def _far_apart(faster: Measurement, slower: Measurement) -> bool:
    """Tell whether the one is ahead by so much, and each of its samples ahead of each of the other's, that it won."""
    if not faster.samples or not slower.samples or slower.value < FAR * faster.value:
        return False
    return max(faster.samples) < min(slower.samples)


def noisy(numbers: Numbers) -> Found:
    """A time that is known only roughly."""
    for m in numbers.of("latency_ms"):
        if _of_host(m):
            continue
        half = relative_half_interval(m)
        if half is not None and half > UNCERTAIN:
            yield said("noisy", m, low=m.ci_low / m.value, high=m.ci_high / m.value)
        elif half is None and m.std is not None and m.value and m.std / m.value > NOISE:
            yield said("noisy std", m, share=m.std / m.value)


def _of_host(m: Measurement) -> bool:
    """Tell whether it is a plain call with its samples: hosts are noisy, and verdicts look at the samples."""
    return bool(m.samples) and m.timing == "eager"


def _work(m: Measurement) -> float:
    """Return the operations, or an estimate if the case leaves a field open."""
    return levels.flops(m.case, "fwd") or float(m.case.seqlen_q) ** 2


def _longest_flat(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Return the longest stretch of rows whose times are alike."""
    best: Sequence[Measurement] = ()
    times: list[float] = []  # of the stretch, sorted
    for end, last in enumerate(rows):
        insort(times, last.value)
        while times[-1] > FLAT * times[0]:
            del times[bisect_left(times, rows[end + 1 - len(times)].value)]
        start = end + 1 - len(times)
        if len(times) > len(best) and last.case.seqlen_q >= STRETCH * rows[start].case.seqlen_q:
            best = rows[start : end + 1]
    return best


def _judged(numbers: Numbers, slower: Measurement, faster: Measurement) -> Judgement | None:
    if not slower.samples or not faster.samples:
        return None
    protocol = numbers.run(faster).protocol
    return judge(slower, faster, protocol=protocol, paired=sampled_in_rounds(protocol))


def _can_be_chance(numbers: Numbers, slower: Measurement, faster: Measurement) -> bool:
    """Tell whether the one may be faster by chance, as far as samples or standard deviations say."""
    found = _judged(numbers, slower, faster)
    return found.verdict is not Verdict.FASTER if found else bool(_within_spread(numbers, slower, faster))


def _within_spread(numbers: Numbers, slower: Measurement, faster: Measurement) -> str | None:
    found = _judged(numbers, slower, faster)
    if found:
        if found.verdict is Verdict.UNCLEAR and found.speedup > 1 and found.low is not None and found.low <= 1:
            return f"but anything from {found.low:.3g}x to {found.high:.3g}x is possible"
        return None
    if slower.std is None or faster.std is None or slower.value - faster.value >= slower.std + faster.std:
        return None
    gap = slower.value - faster.value
    return f"{gap:.4g} ms, less than their standard deviations {faster.std:g} + {slower.std:g} ms"


def _least_most(m: Measurement) -> tuple[float, float]:
    """Return the ends of the 95 % interval; without one those of the rounding."""
    return (m.ci_low, m.ci_high) if relative_half_interval(m) is not None else printed_range(m)
