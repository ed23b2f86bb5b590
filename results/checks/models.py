"""Whole models in less memory than their parts take, or faster than their weights and cache allow on the device."""

from operator import attrgetter

from results import derive, gpus, levels
from results.checks.finding import Found, Numbers, printed_range, said
from results.checks.memory import in_dtype, parameters, weights_mb
from results.checks.speed import AGREES, HEADROOM
from results.gpus import bounds_of
from results.levels.tensors import DTYPE_BYTES
from results.metrics import METRICS
from results.records import case_to_json

# The peaks of training in the shipped runs are 0.99 to 1.01 of the calculator's.
TRAINING = 0.9
# Operations of a token for each parameter: a multiply-add forward, twice that backward (Kaplan et al., Scaling Laws for
# Neural Language Models, arXiv:2001.08361, section 2.1; attention left out).
OPERATIONS = {"train": 6, "prefill": 2}


def below_parts(numbers: Numbers, rule: str) -> Found:
    """A model in less memory than it takes, each row under the first rule that tells.

    `below_weights`: the weights by its name, and in training their gradients. `below_parts`: weights and KV cache, or
    in training weights, gradients and the optimizer's states. `below_training`: the activations, too, by the calculator
    of results.levels.
    """
    for m in numbers.of("peak_memory_mb"):
        level, training = levels.level_of(m.case), m.mode == "train"
        parts = level.parts_mb(case_to_json(m.case), m.mode)
        predicted = levels.memory_mb(m.case, numbers.facts(m).memory, m.mode) if training and level.whole_model else 0.0
        least = {
            "below_weights": (weights_mb(m.case) or 0.0) * (2 if training else 1),
            "below_parts": sum(parts.values()),
            "below_training": TRAINING * (predicted or 0.0),
        }
        if rule == next((name for name, needed in least.items() if printed_range(m)[1] < needed), None):
            made_of = ", ".join(f"{name} {value / 1024:.1f}" for name, value in parts.items())
            of_weights = "weights and gradients" if training else "weights"
            facts = {
                "parts": of_weights,
                "dtype": in_dtype(m.case),
                "made_of": made_of,
                "needs": (predicted or 0) / 1024,
            }
            yield said(rule, m, gib=m.value / 1024, least=least[rule] / 1024, **facts)


def above_step_bandwidth(numbers: Numbers) -> Found:
    """A decoding step in less time than its weights and cache are read in at the memory's bandwidth."""
    for m in numbers.of("latency_ms", "tokens_per_s"):
        gpu, a_step = numbers.run(m).gpu_name, m.mode == "decode" and levels.level_of(m.case).whole_model
        peak = gpus.find(gpu)
        moved = levels.bytes_moved(m.case, m.mode) if peak and a_step else None
        step_ms = m.value if m.metric == "latency_ms" else 1e3 * (m.case.batch or 0) / m.value if m.value else 0.0
        if moved and step_ms and (rate := derive.gb_per_s(moved, step_ms)) > HEADROOM * peak.bandwidth_gb_per_s:
            yield said("above_step_bandwidth", m, gpu=gpu, step=step_ms, moved=moved / 1e9, rate=rate, peak=peak)


def tokens_above_device(numbers: Numbers, rule: str) -> Found:
    """More tokens a second than the device has operations for, or bandwidth to read the weights for each step.

    Operations are 6 a parameter in training and 2 in prefill. Where the cache is known, `above_step_bandwidth` counts
    weights and cache instead.
    """
    for m in numbers.of("tokens_per_s", "samples_per_s"):
        tokens = m.value * (1 if m.metric == "tokens_per_s" else m.case.seqlen_q or 0)
        chip, count = bounds_of(numbers.run(m).gpu_name), parameters(m.case) or 0.0
        each, most = OPERATIONS.get(m.mode or "", 0), chip.tflops(m.case.dtype or "float16")
        rate = each * count * tokens / 1e12
        if rule == "above_weights":
            a_step = m.mode == "decode" and m.case.batch and not levels.bytes_moved(m.case, m.mode)
            read = count * DTYPE_BYTES.get(m.case.dtype or "float16", 2) / 1e9
            rate, most = tokens / m.case.batch * read if a_step else 0.0, chip.bandwidth_gb_per_s
        if rate > HEADROOM * most:
            facts = {"tokens": tokens, "each": each, "billions": count / 1e9, "rate": rate, "most": most}
            yield said(rule, m, chip=chip, **facts)


def throughput_and_time(numbers: Numbers) -> Found:
    """Tokens or samples a second that are not the batch over the time of the same call."""
    cell = attrgetter("run_id", "case", "implementation", "mode")
    times = numbers.grouped(cell, "latency_ms")
    for m in numbers.of("tokens_per_s", "samples_per_s"):
        rows = times.get(cell(m), ())
        same = [time for time in rows if m.timing in (None, time.timing)]
        tokens = m.case.seqlen_q if m.metric == "tokens_per_s" and m.mode != "decode" else 1
        if not same or not m.case.batch or not tokens:
            continue
        rates = [1e3 * m.case.batch * tokens / time.value for time in same]
        if not any(abs(m.value / rate - 1) < AGREES for rate in rates):
            facts = {"unit": METRICS[m.metric].label.lower(), "rate": rates[0], "times": m.value / rates[0]}
            yield said("throughput_and_time", m, same[0], **facts)
