"""Every metric: its label, unit, which direction is better and its range. A new metric is a table in metrics.toml."""

from dataclasses import dataclass

from results.paths import toml_of

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
CHECKED = ("out", "dq", "dk", "dv", "dmask", "dx", *(f"d{kind}_{name}" for kind in "wb" for name in _WEIGHTS))
CHECKED += ("logits", "loss", "grads")  # models: last tokens, all tokens, first layer's attention


METRICS = {  # metrics.toml, with one entry for each checked tensor where a name has {tensor}
    name.replace("{tensor}", tensor): Metric(**{**said, "label": said["label"].replace("{tensor}", tensor)})
    for name, said in toml_of(__file__).items()
    for tensor in (CHECKED if "{tensor}" in name else ("",))
}

# A printed ratio -> the metrics that it can be a ratio of; the first is what our own runs are compared by.
RATIO_OF = {
    "speedup": ("latency_ms", "time_per_token_ms", "samples_per_s", "tokens_per_s"),
    "memory_reduction": ("peak_memory_mb",),
    "memory_saved_percent": ("peak_memory_mb",),
}

# Of which a page shows one at a time.
MEMORY_METRICS = ("peak_memory_mb", "extra_memory_mb", "activation_memory_mb", "attention_memory_mb", "kv_cache_mb")
