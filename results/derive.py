"""What follows from a measurement by arithmetic at every level: rates, speedup, share of the device's peak.

Nothing here is stored; everything is derived on reading. A missing ingredient gives None, never a guess. Operations,
bytes and predicted memory depend on the level: see results/levels.
"""

import math
from collections.abc import Iterable, Mapping

from results import gpus
from results.levels.tensors import BF16X6, Fields, known, numbers_of, query_tokens


def tflops(flops: float | None, latency_ms: float | None) -> float | None:
    """Return 10^12 operations a second."""
    return None if not flops or not latency_ms else flops / latency_ms / 1e9


def gb_per_s(moved: float | None, latency_ms: float | None) -> float | None:
    """Return 10^9 bytes a second."""
    return None if not moved or not latency_ms else moved / latency_ms / 1e6


def time_per_token_us(case: Fields, latency_ms: float | None) -> float | None:
    """Return the microseconds of a call over its query tokens."""
    count = query_tokens(case)
    return None if not count or not latency_ms else 1e3 * latency_ms / count


def tokens_per_s(case: Fields, latency_ms: float | None) -> float | None:
    """Return the tokens a second that a call works on: generated in decoding, read in prefill, learnt in training."""
    count = query_tokens(case)
    return None if not count or not latency_ms else 1e3 * count / latency_ms


def samples_per_s(case: Fields, latency_ms: float | None) -> float | None:
    """Return the sequences a second that a call works on."""
    batch = known(case.get("batch"))
    return None if not batch or not latency_ms else 1e3 * batch / latency_ms


def memory_per_token_mb(case: Fields, memory_mb: float | None) -> float | None:
    """Return memory over the tokens that it serves: the batch's contexts."""
    found = numbers_of(case, "batch", "seqlen_k")
    return None if found is None or not memory_mb else memory_mb / (found[0] * found[1])


def tokens_per_joule(case: Fields, energy_j: float | None) -> float | None:
    """Return the query tokens that a joule serves: of one attention call, not of a whole model."""
    count = query_tokens(case)
    return None if not count or not energy_j else count / energy_j


def joules_per_tflop(flops: float | None, energy_j: float | None) -> float | None:
    """Return the joules for 10^12 useful operations."""
    return None if not flops or not energy_j else energy_j / flops * 1e12


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the mean of ratios; None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def peak_tflops(gpu_name: str | None, dtype: str | None, *, tf32: bool | None = None) -> float | None:
    """Return the device's peak for a dtype; float32 needs to know whether TF32 was used. None if unknown."""
    peak = gpus.find(gpu_name)
    if peak is None:
        return None
    if dtype == "float32" and tf32 is not None:
        return peak.tf32_tflops if tf32 else peak.float32_tflops
    rates: dict[str, float | None] = dict.fromkeys(("bfloat16", "float16"), peak.tensor_tflops)
    rates |= {"float8_e4m3fn": peak.fp8_tflops, "float64": peak.float64_tflops, BF16X6: peak.tensor_tflops / 6}
    return rates.get(dtype or "")


def measured_peak_tflops(
    measured: Mapping[str, float] | None, dtype: str | None, *, tf32: bool | None = None
) -> float | None:
    """Return what a large matrix product of a dtype reached on the machine of the run (Run.measured_tflops).

    float32 needs to know whether TF32 was used. None if it was not measured.
    """
    if dtype == "float32" and tf32 is None:
        return None
    if dtype == BF16X6:
        return measured["bfloat16"] / 6 if measured and "bfloat16" in measured else None
    return (measured or {}).get("tf32" if dtype == "float32" and tf32 else dtype or "")


def least_ms(flops: float | None, moved: float | None, gpu_name: str | None, dtype: str | None) -> float | None:
    """Return the milliseconds that a datasheet's peaks leave for so many operations and bytes, whichever take longer.

    None if the device is unknown, or both counts are.
    """
    peak, rate = gpus.find(gpu_name), peak_tflops(gpu_name, dtype, tf32=False)
    bounds = [flops / rate / 1e9] if flops and rate else []
    bounds += [moved / peak.bandwidth_gb_per_s / 1e6] if moved and peak else []
    return max(bounds, default=None)


def percent_of_peak(achieved_tflops: float | None, peak: float | None) -> float | None:
    """Return the share of the peak in percent."""
    return None if achieved_tflops is None or not peak else 100 * achieved_tflops / peak
