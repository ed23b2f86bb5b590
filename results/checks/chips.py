"""Runs whose facts are those of another chip than the one they name."""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from statistics import median

from results import derive
from results.checks import stolen
from results.checks.finding import DOUBTFUL, Found, Numbers, bytes_moved, flops_range, said
from results.checks.machine import OVER_POWER
from results.checks.speed import HEADROOM
from results.compare.between_runs import is_control
from results.gpus import DRIVER_NAMES, GPUS, DataSheet, find
from results.levels import level_of
from results.paths import toml_of
from results.records import Measurement, Run

# Least and largest compute capability by implementation.
RUNS_ON: dict[str, tuple[str, str | None]] = {
    name: (limits["least"], limits.get("most")) for name, limits in toml_of(__file__).items()
}
# On the shipped runs a large matrix product reaches 0.77 to 0.82 of the data sheet, and a copy 0.88 to 0.90. A chip at
# less than these shares is throttled or another one.
_LEAST_TFLOPS, _LEAST_GBS = 0.5, 0.7
# A copy's share over a matrix product's: 1.06 to 1.17 on the shipped runs. A throttled chip has more, not less.
_LEAST_RATIO = 0.85
_MEMORY = (0.9, 1.03)  # reported over nominal memory: drivers reserve up to 6 %, and gigabytes are rounded
_L2 = (0.9, 1.1)
_CLOCK = 1.1  # relative to the boost clock of a card that nobody overclocks
# Times of PyTorch's kernels, relative to one another, differ by 0.3 to 0.9 % (median) between H200s and by 1.1 to 2.1 %
# between an H200 and an H100. Their medians are within 3.5 % even so.
_CELLS, _NEAR, _APART, _TIMES_AS_FAR, _RATE = 20, 0.007, 0.01, 2.0, 1.3
_OF_HOST_MS = 1.0  # launches can hide below longer plain calls
# Events on H100 and H200 tick every 32 ns: true of every kernel sample below 1 ms in the shipped runs, which have six
# digits. Longer samples are rounded to fewer decimals than ticks have.
TICK_MS, _OF_TICK, _EXACT_BELOW_MS, _MOST_OFF = 32e-6, 0.02, 1.0, 0.05
_MANY, _FAR = 60, 0.012  # cells, and how far, that show another chip without a run of it


def of_another(numbers: Numbers, weight: str) -> Found:
    """Yield the runs that the named chip cannot have made: other compute capability, more SMs, higher peaks.

    As doubtful, yield those whose memory, cache, clock, power or measured rates fit another chip better.
    """
    for run_id, run in numbers.runs.items():
        chip, rows = find(run.gpu_name), numbers.latencies_of(run_id)
        found = _impossible(run, rows, chip) if chip and rows else []
        if weight == DOUBTFUL:
            found = _unlikely(run, rows, chip) if chip and rows and not found else []
        if found:
            why = "; ".join(found) + _resembles(run, rows, chip)
            yield rows, f"{run_id} is said to be of {run.gpu_name}, but {why}."


def without_facts(numbers: Numbers) -> Found:
    """Yield the runs of this project's runner that hold nothing of the chip that the runner records."""
    for run_id, run in numbers.runs.items():
        rows = numbers.latencies_of(run_id)
        known = (run.sm_count, run.gpu_memory_mb, run.l2_mb, run.measured_gbs)
        if run.protocol and run.source == "upload" and find(run.gpu_name) and rows and not any(known):
            yield said("without_facts", *rows, gpu=run.gpu_name)


def off_ticks(numbers: Numbers) -> Found:
    """Samples of this project's device times on Hopper that its timer cannot give, as scaled or made-up ones are."""
    for run_id, run in numbers.runs.items():
        chip = find(run.gpu_name)
        if not run.protocol or not chip or chip.compute_capability != "9.0":
            continue
        rows = [m for m in numbers.latencies_of(run_id) if m.timing == "kernel"]
        samples = [(m, x) for m in rows for x in m.samples if x < _EXACT_BELOW_MS]
        off = [(m, x) for m, x in samples if abs(x / TICK_MS - round(x / TICK_MS)) > _OF_TICK]
        if len(off) > _MOST_OFF * len(samples):
            m, x = off[0]
            yield said(
                "off_ticks", m, *(m for m in rows if m is not off[0][0]), off=len(off), count=len(samples), sample=x
            )


def of_another_gpu(numbers: Numbers) -> Found:
    """Yield the runs whose GPU, by its UUID, has another name in a run that is here."""
    here: stolen.Elsewhere | None = numbers.elsewhere
    for run_id, run in numbers.runs.items() if here else ():
        same = (other for other in here.runs.values() if run.gpu_uuid and other.gpu_uuid == run.gpu_uuid)
        renamed = (other for other in same if find(other.gpu_name) is not find(run.gpu_name))
        other = next((other for other in renamed if here.is_before(other.run_id, run_id)), None)
        if other and (rows := numbers.latencies_of(run_id)):
            yield said("of_another_gpu", *rows, run=run, other=other)


def unlike_its_chip(numbers: Numbers) -> Found:
    """Yield the runs in which kernels relate to one another as on another chip, or are far from the chip's times.

    Kernels are PyTorch's, or all where both runs have the same. What all times have in common, such as a clock, does
    not count unless it is large.
    """
    here: stolen.Elsewhere | None = numbers.elsewhere
    for run_id, run in numbers.runs.items() if here else ():
        settled = [m for m in numbers.latencies_of(run_id) if m.timing == "kernel" or m.value > _OF_HOST_MS]
        settled = settled if find(run.gpu_name) else []
        rows = [m for m in settled if m.timing == "kernel"]
        apart = sorted(_apart(run, rows, numbers), key=itemgetter(0))
        of_name = (each for each in apart if find(each[3].gpu_name) is find(run.gpu_name))
        near, shift, count, own = next(of_name, (0.0, 0.0, 0, None))
        nearest = apart or sorted(_apart(run, settled, numbers), key=itemgetter(0))
        least, _, most, other = nearest[0] if nearest else (1.0, 0.0, 0, None)
        facts = {"run": run, "times": math.exp(shift), "own": own, "near": near, "other": other, "least": least}
        if near > _APART and near > _TIMES_AS_FAR * least:
            yield said("unlike_its_chip", *rows, count=count, **facts)
        elif abs(shift) > math.log(_RATE):
            yield said("unlike_its_chip rate", *rows, **facts)
        elif other and least < _NEAR and find(other.gpu_name) is not find(run.gpu_name):
            yield said("unlike_its_chip another", *settled, count=most, **facts)
        elif own and near > _FAR and count >= _MANY and own.power_limit_w == run.power_limit_w:
            yield said("unlike_its_chip far", *rows, count=count, **facts)


def _apart(run: Run, rows: Sequence[Measurement], numbers: Numbers) -> Iterator[tuple[float, float, int, Run]]:
    """Yield of each earlier run that is here how far the shared times are apart, their shift, their count, and it."""
    ratios: dict[str, list[float]] = {}
    here: stolen.Elsewhere = numbers.elsewhere
    for m in rows:
        for other in here.by_cell.get(stolen.cell_of(m), {}).values():
            usable = not (m.flags or other.flags) and other.run_id not in numbers.runs
            if usable and here.is_before(other.run_id, run.run_id):
                same = run.kernel_hash and run.kernel_hash == here.runs[other.run_id].kernel_hash
                if same or is_control(m.implementation):
                    ratios.setdefault(other.run_id, []).append(math.log(m.value / other.value))
    for each, logs in ratios.items():
        middle = median(logs)
        if len(logs) >= _CELLS and run.torch == here.runs[each].torch:
            yield median(abs(log - middle) for log in logs), middle, len(logs), here.runs[each]


def _resembles(run: Run, rows: Sequence[Measurement], named: DataSheet) -> str:
    """Return the chip of the table that contradicts the run least, in words; empty if the named one does."""
    counts = {name: len(_impossible(run, rows, chip) + _unlikely(run, rows, chip)) for name, chip in GPUS.items()}
    least = min(GPUS, key=lambda name: (counts[name], GPUS[name] is not named))
    return "" if GPUS[least] is named else f"; {least.upper()} fits best"


def _impossible(run: Run, rows: Sequence[Measurement], chip: DataSheet) -> list[str]:
    found = []
    has = chip.compute_capability
    if run.compute_capability and run.compute_capability != has:
        found.append(f"its compute capability is {run.compute_capability} instead of {has}")
    if run.sm_count and chip.sm_count and run.sm_count > chip.sm_count:
        found.append(f"it has {run.sm_count} SMs instead of {chip.sm_count}")
    for dtype, rate in (run.measured_tflops or {}).items():
        most = chip.tflops("float32" if dtype == "tf32" else dtype)
        if rate > HEADROOM * most:
            found.append(f"a matrix product in {dtype} reached {rate:.0f} TFLOP/s where {most:g} is the most")
    if run.measured_gbs and run.measured_gbs > HEADROOM * chip.bandwidth_gb_per_s:
        found.append(f"a copy reached {run.measured_gbs:.0f} GB/s where {chip.bandwidth_gb_per_s:g} is the most")
    names = sorted({m.implementation for m in rows})
    found += [f"{name} does not run on compute capability {has}" for name in names if not runs_on(name, has)]
    return found


def _unlikely(run: Run, rows: Sequence[Measurement], chip: DataSheet) -> list[str]:
    nominal = chip.total_mb or 1024 * chip.memory_gb
    clock = max((m.sm_clock_mhz for m in rows if m.sm_clock_mhz), default=0.0)
    fixed_clock = chip.clock_mhz < 2100  # of data-center cards, which no maker overclocks
    compute, memory = _reached(run, rows)
    shares = compute / chip.tensor_tflops, memory / chip.bandwidth_gb_per_s
    titled = [name for name in DRIVER_NAMES if name in (run.title or "")]
    checks = (
        (titled and chip not in map(find, titled), f"its title names {' and '.join(titled)}"),
        (_outside(run.gpu_memory_mb, nominal, _MEMORY), f"it has {run.gpu_memory_mb} MiB instead of {nominal:g}"),
        (_outside(run.l2_mb, chip.l2_mb, _L2), f"it has {run.l2_mb} MB of L2 instead of {chip.l2_mb:g}"),
        ((run.power_limit_w or 0) > OVER_POWER * chip.power_w, f"{run.power_limit_w} W instead of {chip.power_w:g}"),
        (fixed_clock and clock > _CLOCK * chip.clock_mhz, f"{clock:.0f} MHz instead of {chip.clock_mhz:g}"),
        (
            bool(run.measured_tflops) and 0 < shares[0] < _LEAST_TFLOPS,
            f"a matrix product reached {shares[0]:.0%} of its TFLOP/s",
        ),
        (bool(run.measured_gbs) and shares[1] < _LEAST_GBS, f"a copy reached {shares[1]:.0%} of its bandwidth"),
        (
            bool(memory and compute) and shares[1] < _LEAST_RATIO * shares[0],
            f"it reached {shares[0]:.0%} of the TFLOP/s but {shares[1]:.0%} of the bandwidth",
        ),
    )
    return [words for wrong, words in checks if wrong]


def _outside(value: float | None, nominal: float, bounds: tuple[float, float]) -> bool:
    return bool(value) and not bounds[0] * nominal <= value <= bounds[1] * nominal


def _reached(run: Run, rows: Sequence[Measurement]) -> tuple[float, float]:
    """Return the TFLOP/s in 16 bits and the GB/s that the run measured, or its fastest cells; 0 if not known.

    Cells count only where a run has both kinds, those bound by operations and those bound by memory.
    """
    measured = [(run.measured_tflops or {}).get(dtype, 0.0) for dtype in ("bfloat16", "float16")]
    if max(measured) and run.measured_gbs:
        return max(measured), run.measured_gbs
    compute = memory = 0.0
    for m in rows:
        if m.timing == "eager" or m.case.dtype not in ("bfloat16", "float16"):
            continue
        if level_of(m.case).memory_bound:
            memory = max(memory, derive.gb_per_s(bytes_moved(m.case, m.mode), m.value) or 0.0)
        elif flops := flops_range(m.case, m.mode):
            compute = max(compute, flops[0] / m.value / 1e9)
    return (compute, memory) if compute and memory else (max(measured), run.measured_gbs or 0.0)


def runs_on(name: str, capability: str) -> bool:
    """Tell whether an implementation, of any version, can run on a compute capability."""
    least, most = RUNS_ON.get(name.partition("@")[0], (None, None))
    if capability.startswith("gfx"):
        return most is None  # limited to NVIDIA's instructions of one generation
    return _number(least or "0") <= _number(capability) <= _number(most or "99")


def _number(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))
