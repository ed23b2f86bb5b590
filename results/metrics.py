"""Every metric: its label, unit, which direction is better and what it can be. A new metric is one line here."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_MS = 1e9  # largest time that an upload can state: 11 days
ABOVE_ZERO, ZERO_TOO, SIGNED = "above 0", "at least 0", "any number"


@dataclass(frozen=True)
class Metric:
    """How a kind of number is named and read."""

    label: str
    unit: str
    better: str  # "lower" or "higher"
    description: str
    range: str = ABOVE_ZERO  # allowed range of value and samples; SIGNED allows any number
    repeats: bool = False  # its samples repeat one measurement, so that the value and spread follow from them

    def holds(self, number: float) -> bool:
        """Tell whether the metric can be that number."""
        return number > 0 or self.range == SIGNED or (self.range == ZERO_TOO and number == 0)

    def excess(self, number: float) -> str | None:
        """Return why a number is larger than anything measured; None if it is not."""
        too_long = self.unit == "ms" and number > LONGEST_MS
        return f"is {number:g} ms; at most {LONGEST_MS:g} ms (11 days) is possible" if too_long else None


_WEIGHTS = ("qkv", "q", "k", "v", "down", "up", "out")  # projections of layers
# Tensors that are compared with float64: of the operator, and of layers with the gradients of weights and biases.
CHECKED = ("out", "dq", "dk", "dv", "dx", *(f"d{kind}_{name}" for kind in "wb" for name in _WEIGHTS))
CHECKED += ("logits", "loss", "grads")  # models: last tokens, all tokens, first layer's attention

METRICS: dict[str, Metric] = {
    "latency_ms": Metric("Latency", "ms", "lower", "time of one call", repeats=True),
    "latency_extrapolated_ms": Metric(
        "Latency, extrapolated",
        "ms",
        "lower",
        "of a model deeper than was measured, from two depths; never compared with measured latencies",
    ),
    "attention_share": Metric("Share of attention", "%", "lower", "of the call's device time", ZERO_TOO),
    "throttled_latency_ms": Metric(
        "Latency of a throttled attempt", "ms", "lower", "the first attempt; the latency was measured again"
    ),
    "attention_ms": Metric(
        "Attention alone", "ms", "lower", "time of the attention inside a layer, on the views its projections give"
    ),
    "compile_ms": Metric(
        "Compile time",
        "ms",
        "lower",
        "first call less a warm call: loading, and compiling what was not on disk already",
        ZERO_TOO,
    ),
    "peak_memory_mb": Metric("Peak memory", "MiB", "lower", "largest allocation during the call, inputs included"),
    "extra_memory_mb": Metric(
        "Memory above inputs", "MiB", "lower", "peak less what was allocated before the call", ZERO_TOO
    ),
    "inputs_memory_mb": Metric("Inputs", "MiB", "lower", "what the call is given: q, k, v, and with a backward dout"),
    "reserved_memory_mb": Metric(
        "Reserved memory", "MiB", "lower", "the inputs and what torch's allocator takes from the device for the call"
    ),
    "activation_memory_mb": Metric("Saved for backward", "MiB", "lower", "kept between forward and backward", ZERO_TOO),
    "attention_memory_mb": Metric(
        "Attention matrix", "MiB", "lower", "scores and probabilities, as published", ZERO_TOO
    ),
    "kv_cache_mb": Metric("KV cache", "MiB", "lower", "keys and values kept", ZERO_TOO),
    "weights_memory_mb": Metric("Weights", "MiB", "lower", "parameters of a model"),
    "states_memory_mb": Metric(
        "Training states", "MiB", "lower", "gradients, optimizer states and master weights", ZERO_TOO
    ),
    "memory_per_token_mb": Metric("Memory per token", "MiB", "lower", "memory over tokens"),
    "memory_reduction": Metric("Memory reduction", "x", "higher", "baseline over implementation, as printed"),
    "memory_saved_percent": Metric("Memory saved", "%", "higher", "1 - implementation / baseline, as printed", SIGNED),
    "energy_j": Metric("Energy", "J", "lower", "of one call, idle power of the GPU included", repeats=True),
    "burst_tflops": Metric("Burst", "TFLOP/s", "higher", "in the first second of back-to-back calls"),
    "sustained_tflops": Metric("Sustained", "TFLOP/s", "higher", "of back-to-back calls once the GPU is hot"),
    "sustained_clock_mhz": Metric("SM clock, sustained", "MHz", "higher", "during sustained_tflops"),
    "sustained_power_w": Metric("Power, sustained", "W", "lower", "during sustained_tflops"),
    "sustained_temperature_c": Metric("Temperature, sustained", "C", "lower", "during sustained_tflops", SIGNED),
    "time_per_token_ms": Metric("Time per token", "ms", "lower", "latency over tokens"),
    "time_to_first_token_ms": Metric("Time to first token", "ms", "lower", "of one request, queueing included"),
    "requests_per_s": Metric("Requests per second", "1/s", "higher", "completed by a server or a batch run"),
    "tokens_per_s": Metric("Tokens per second", "1/s", "higher", "throughput of generation"),
    "samples_per_s": Metric("Samples per second", "1/s", "higher", "throughput of training"),
    "tflops": Metric("TFLOP/s", "TFLOP/s", "higher", "as printed; ours is derived from latency"),
    "gb_per_s": Metric("GB/s", "GB/s", "higher", "10^9 bytes a second, as printed; ours is derived from latency"),
    "peak_percent": Metric("Share of peak", "%", "higher", "of what the device can do, as printed", ZERO_TOO),
    "utilization_percent": Metric("GPU utilization", "%", "higher", "as printed", ZERO_TOO),
    "shared_memory_kb": Metric("Shared memory", "KiB", "lower", "of one block, as printed"),
    "speedup": Metric("Speedup", "x", "higher", "baseline over implementation, as printed"),
    **{
        f"error_{tensor}": Metric(
            f"Error of {tensor}", "", "lower", "relative root mean square error against float64", ZERO_TOO
        )
        for tensor in CHECKED
    },
    **{
        f"max_error_{tensor}": Metric(
            f"Largest error of {tensor}", "", "lower", "largest absolute difference from float64", ZERO_TOO
        )
        for tensor in CHECKED
    },
    "error_out_original": Metric(
        "Error of out, original cache",
        "",
        "lower",
        "relative root mean square error against float64 on the cache before it was quantised",
        ZERO_TOO,
    ),
    "max_error_out_original": Metric(
        "Largest error of out, original cache",
        "",
        "lower",
        "largest absolute difference from float64 on the cache before it was quantised",
        ZERO_TOO,
    ),
}

# A printed ratio -> the metrics that it can be a ratio of; the first is what our own runs are compared by.
RATIO_OF = {
    "speedup": ("latency_ms", "time_per_token_ms", "samples_per_s", "tokens_per_s"),
    "memory_reduction": ("peak_memory_mb",),
    "memory_saved_percent": ("peak_memory_mb",),
}

# Of which a page shows one at a time.
MEMORY_METRICS = (
    "peak_memory_mb",
    "extra_memory_mb",
    "activation_memory_mb",
    "attention_memory_mb",
    "kv_cache_mb",
)
