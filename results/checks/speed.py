"""Speeds that the device cannot reach, or that its own times do not give."""

from dataclasses import replace
from operator import attrgetter

from results import derive, gpus
from results.checks.finding import Found, Numbers, bytes_moved, flops_range, ms, printed_range, said
from results.gpus import bounds_of
from results.levels import level_of
from results.records import CASE_FIELDS, Case, Measurement, Run, compatible

# A chip may clock higher than the boost clock of its datasheet: an H200 runs at 1980 MHz, its figures are of 1830.
HEADROOM = 1.10
SEVERAL_L2 = 1 << 29  # bytes
AGREES = 0.10  # printed TFLOP/s and operations over time
SLOWER_BY = 1.5  # more work in less time, by less than this, can be noise or another chip


def above_peak(numbers: Numbers, rule: str) -> Found:
    """More operations a second than the device has by its data sheet, even with the mask that needs the fewest.

    Under the rule `above_measured`: more than a large matrix product reached on that machine at the start of the run.
    """
    for m in numbers.of("latency_ms", "tflops", "burst_tflops", "sustained_tflops"):
        run, peak, claim = numbers.run(m), _highest_rate(numbers, m), m.metric != "latency_ms"
        flops = None if claim else flops_range(m.case, m.mode)
        rate = m.value if claim else flops[0] / m.value / 1e9 if flops else 0.0
        beyond = rate > HEADROOM * peak[0]
        if rule == "above_peak" and beyond:
            mask = " even if causal" if m.case.causal is None else ""
            sentence = "above_peak claim" if claim else "above_peak"
            yield said(sentence, m, rate=rate, mask=mask, peak=peak, gpu=_whose(numbers, m))
        elif rule == "above_measured" and not beyond and not claim and run.measured_tflops:
            dtype = numbers.facts(m).multiplies(m.case.dtype)
            names = ("tf32", "float32") if dtype == "float32" else (dtype,)
            best = max((reached for name, reached in run.measured_tflops.items() if name in names), default=None)
            if best and rate > HEADROOM * best:
                yield said("above_measured", m, rate=rate, times=rate / best, best=best)


def above_bandwidth(numbers: Numbers) -> Found:
    """More bytes a second than the device's memory has: they were in L2, or are not there.

    Calls that move less than SEVERAL_L2 may find it in L2, except that the timing `kernel` overwrites L2 first.
    """
    for m in numbers.of("latency_ms"):
        chip = bounds_of(numbers.run(m).gpu_name)
        level = level_of(m.case)
        cold = level.memory_bound and m.timing != "eager" and gpus.find(numbers.run(m).gpu_name)
        moved = None if level.whole_model else bytes_moved(m.case, m.mode)  # results.checks.models checks these
        rate = derive.gb_per_s(moved, m.value)
        if rate and rate > chip.bandwidth_gb_per_s and (cold or moved > SEVERAL_L2):
            where = "the cache was in L2, or was shared by the sequences" if cold else "bytes are missing"
            yield said("above_bandwidth", m, rate=rate, chip=chip, gpu=_whose(numbers, m), where=where)
    for m in numbers.of("gb_per_s"):
        chip = bounds_of(numbers.run(m).gpu_name)
        if printed_range(m)[0] > HEADROOM * chip.bandwidth_gb_per_s:
            yield said("above_bandwidth claim", m, chip=chip, gpu=_whose(numbers, m))


def time_and_tflops(numbers: Numbers) -> Found:
    """The printed TFLOP/s are not the operations over the printed time."""
    times: dict[tuple, list[Measurement]] = {}
    for m in numbers.of("latency_ms"):
        for mode, timing in {(m.mode, m.timing), (m.mode, None), (None, m.timing), (None, None)}:
            # a printed rate may leave open of which mode and timing it is
            times.setdefault((m.run_id, m.case, m.implementation, mode, timing), []).append(m)
    for printed in numbers.of("tflops"):
        key = (printed.run_id, printed.case, printed.implementation, printed.mode, printed.timing)
        rated = []
        for time in times.get(key, ()) if printed.case.seqlen_q is not None else ():
            case, source = _completed(numbers, time)
            flops = flops_range(case, time.mode)
            if flops and time.value:
                low, high = (count / time.value / 1e9 for count in flops)
                rated.append((time, case, source, low, high))
        if not any((1 - AGREES) * low <= printed.value <= (1 + AGREES) * high for _, _, _, low, high in rated):
            for time, case, source, low, high in rated:
                nearest = high if printed.value > high else low
                mask = " with a full mask" if case.causal is None and nearest == high else ""
                facts = {"nearest": nearest, "mask": mask, "times": printed.value / nearest, "source": source}
                yield said("time_and_tflops", printed, time, **facts)


def claimed_tflops(numbers: Numbers) -> Found:
    """TFLOP/s said of no case that no case of the report reaches."""
    for claim in numbers.of("tflops"):
        if claim.case.seqlen_q is not None:
            continue
        reached = [
            (flops[1] / m.value / 1e9, m)
            for m in numbers.of("latency_ms")
            if (m.run_id, m.implementation, m.mode) == (claim.run_id, claim.implementation, claim.mode)
            and m.value
            and compatible(claim.case, m.case)
            and (flops := flops_range(m.case, m.mode))
        ]
        best = max(reached, default=None, key=lambda pair: pair[0])
        if best and printed_range(claim)[0] > (1 + AGREES) * best[0]:
            yield said("claimed_tflops", claim, best[1], rate=best[0], times=claim.value / best[0])


def share_of_peak(numbers: Numbers) -> Found:
    """A printed share of the peak that fits no device which the printed name can mean."""
    of = attrgetter("run_id", "implementation", "case")
    speeds = numbers.grouped(of, "tflops")
    for percent in numbers.of("peak_percent"):
        for speed in speeds.get(of(percent), ()) if printed_range(percent)[0] > 0 else ():
            gpu = numbers.run(percent).gpu_name
            low, high = (100 * speed.value / end for end in reversed(printed_range(percent)))
            words = set((gpu or "").split())  # of a shortened name: it can be each whose full name has them
            full = [name for name in gpus.DRIVER_NAMES if words and words <= set(name.replace("-", " ").split())]
            peaks = {name: bounds_of(name).tflops(percent.case.dtype) for name in full}
            if peaks and not any(low <= peak <= high for peak in peaks.values()):
                of_peak = "{} has {:g}, of which it is {:.0f} %".format
                shares = "; ".join(of_peak(name, peak, 100 * speed.value / peak) for name, peak in peaks.items())
                means = 100 * speed.value / percent.value
                yield said("share_of_peak", percent, speed, means=means, gpu=gpu, shares=shares)


def time_per_token(numbers: Numbers) -> Found:
    """A time per token that adds up to far more than a larger batch took elsewhere in the report."""
    for m in numbers.of("time_per_token_ms"):
        case = m.case
        if not case.batch or not case.seqlen_q:
            continue
        total = m.value * (count := case.batch * case.seqlen_q)
        for other in numbers.of("latency_ms"):
            if (
                other.implementation == m.implementation
                and other.mode in (None, "fwd")
                and (other.case.batch or 0) >= case.batch
                and other.case.num_heads == case.num_heads
                and compatible(case, other.case, but=("batch",))
                and _same_device(numbers.run(m), numbers.run(other))
                and total > SLOWER_BY * other.value
            ):
                facts = {"count": count, "total": total, "times": total / other.value}
                yield said("time_per_token", m, other, work=other.case.batch / case.batch, **facts)


def _highest_rate(numbers: Numbers, m: Measurement) -> tuple[float, str]:
    """Return the fastest the device can multiply what the implementation does, and whose word that is."""
    dtype, chip = numbers.facts(m).multiplies(m.case.dtype), bounds_of(numbers.run(m).gpu_name)
    eight_bits = dtype not in ("float64", "float32", "float16", "bfloat16") and chip.fp8
    kind = {"float32": "TF32", "float64": "float64"}.get(dtype or "", "16 bit")
    kind = "float8 at twice the 16-bit rate" if eight_bits else kind
    return chip.tflops(dtype), f"{chip.source}, {kind}"


def _whose(numbers: Numbers, m: Measurement) -> str:
    return numbers.run(m).gpu_name or "any GPU"


def _same_device(first: Run, second: Run) -> bool:
    """Tell whether two names are the same, or one the other's beginning: A100 and A100 80GB."""
    names = [run.gpu_name or "" for run in (first, second)]
    return bool(min(names)) and (names[0].startswith(names[1]) or names[1].startswith(names[0]))


def _completed(numbers: Numbers, time: Measurement) -> tuple[Case, str]:
    """Return the case with what it leaves open, if another table of the report has the very number and says it."""
    if flops_range(time.case, time.mode):
        return time.case, ""
    twins = [
        m
        for m in numbers.of("latency_ms")
        if (m.implementation, m.mode, m.value) == (time.implementation, time.mode, time.value)
        and compatible(time.case, m.case)
        and flops_range(m.case, m.mode)
    ]
    if len({twin.case for twin in twins}) != 1:
        return time.case, ""
    twin = twins[0]
    fields = {
        name: getattr(twin.case, name)
        for name in CASE_FIELDS
        if getattr(time.case, name) is None and getattr(twin.case, name) is not None
    }
    shape = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "head_dim_v")
    return replace(time.case, **fields), f" ({shape} as in the table that has the same {ms(time)})"
