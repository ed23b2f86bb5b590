"""Numbers that are too regular, or all wrong by one factor: copied, without spread, in another unit."""

import statistics
from operator import attrgetter

from results.checks import stolen
from results.checks.finding import Found, Numbers, bytes_moved, flops_range, said, series_of, what
from results.gpus import bounds_of
from results.records import Measurement

LONG_ENOUGH = 3  # points of a series that two implementations cannot share by chance
DIGITS = 3  # significant digits of each sample
SAMPLES = 10  # number of samples that cannot all be equal
_TICKS_MS = 0.1  # a hundred ticks of the coarsest timer
_DIGITS_OF_MULTIPLES = 4  # rounded times of two series can be multiples of each other by chance
_OF_IMPLEMENTATION = attrgetter("run_id", "implementation", "timing", "mode")
_SAME_ERRORS = 6  # cases that have no error in common by chance
_WARM_UP = 20  # first sample over the median: at most 17 in the shipped runs, for plain calls that start a process
SLOWER_BY = 200  # than the device needs, in every row of a run
_OVERHEAD_MS = 0.02  # overhead of a call with several kernels


def copied(numbers: Numbers) -> Found:
    """The numbers of one implementation, size or mode are those of another to the digit, or a multiple of them."""
    yield from _same_samples(numbers)
    told: set[str] = set()
    for way, place in ((series_of, attrgetter("case.seqlen_k")), (_OF_IMPLEMENTATION, attrgetter("case"))):
        seen: dict[tuple, list[Measurement]] = {}
        for key, rows in numbers.grouped(way, "latency_ms").items():
            points, least = {(place(m), m.value) for m in rows}, min(m.value for m in rows)
            digits = [len(f"{value:.15g}".replace(".", "").strip("0")) for _, value in points]
            if sum(count >= DIGITS for count in digits) < LONG_ENOUGH:
                continue
            relative = frozenset((at, round(value / least, 9)) for at, value in points)
            first = seen.setdefault((key[0], relative), rows)
            factor = least / min(m.value for m in first)
            few = factor != 1 and sum(count >= _DIGITS_OF_MULTIPLES for count in digits) < LONG_ENOUGH
            if first is not rows and not few and rows[0].measurement_id not in told:
                facts = {"what_other": what(first[0]), "count": len(points), "factor": factor}
                yield said("copied" if factor == 1 else "copied multiple", *rows, *first, **facts)
                told |= {m.measurement_id for m in rows}
    by_value = attrgetter("run_id", "implementation", "metric", "value")
    for rows in numbers.grouped(by_value, "error_out", "error_dq", "error_dk", "error_dv").values():
        if len({m.case for m in rows}) >= _SAME_ERRORS and rows[0].value:
            yield said("copied errors", *rows, count=len(rows))


def _same_samples(numbers: Numbers) -> Found:
    seen: dict[tuple, Measurement] = {}
    for m in numbers.of("latency_ms"):
        shape, count = stolen.shape_of(m.samples), len(m.samples)
        first = seen.setdefault((m.run_id, shape), m) if shape else m
        factor = None if first is m else stolen.factor_of(m.samples, first.samples)
        if factor:
            times = "the same" if abs(factor - 1) < 1e-6 else f"{factor:.6g} times the"
            yield said("copied samples", m, first, times=times, count=count)
        for parts in range(2, count // stolen.DISTINCT + 1):
            length = count // parts
            if count % parts == 0 and m.samples[length:] == m.samples[:-length] and len(set(m.samples)) > 1:
                yield said("copied repeated", m, length=length, parts=parts)
                break


def warm_up(numbers: Numbers) -> Found:
    """A first sample far above all others, which is loading or compiling and not the call."""
    for m in numbers.of("latency_ms"):
        rest = m.samples[1:]
        if len(rest) >= LONG_ENOUGH and m.samples[0] > _WARM_UP * max(statistics.median(rest), max(rest) / 2):
            yield said("warm_up", m, times=m.samples[0] / m.value)


def no_spread(numbers: Numbers) -> Found:
    """Ten and more samples without any spread, or a run whose every standard deviation is 0."""
    for run_id in numbers.runs:
        rows = [m for m in numbers.latencies_of(run_id) if m.std is not None and not m.samples and not m.n]
        if len(rows) >= LONG_ENOUGH and not any(m.std for m in rows) and rows[0].value > _TICKS_MS:
            yield said("no_spread std", *rows, count=len(rows))
    for m in numbers.of("latency_ms"):
        count = len(m.samples) or m.n or 0
        flat = (len(set(m.samples)) == 1) if m.samples else m.std == 0 or (m.p20 is not None and m.p20 == m.p80)
        if count >= SAMPLES and flat and m.value > _TICKS_MS:
            yield said("no_spread", m, count=count)


def thousandfold(numbers: Numbers) -> Found:
    """Every time of an implementation is hundreds of times what the device needs: another unit was read."""
    for (run_id, _), rows in numbers.grouped(attrgetter("run_id", "implementation"), "latency_ms").items():
        gpu = numbers.runs[run_id].gpu_name
        chip, shares = bounds_of(gpu), []
        for m in rows if chip.known else ():
            flops, moved = flops_range(m.case, m.mode), bytes_moved(m.case, m.mode)
            if flops and moved:  # at the device's peaks, with some overhead
                needed = max(flops[1] / chip.tflops(m.case.dtype) / 1e9, moved / chip.bandwidth_gb_per_s / 1e6)
                shares.append((m.value / (needed + _OVERHEAD_MS), m))
        least = min(shares, default=None, key=lambda pair: pair[0])
        if least and len(shares) >= LONG_ENOUGH and least[0] > SLOWER_BY:
            yield said("thousandfold", least[1], times=least[0], gpu=gpu, chip=chip, count=len(shares))
