"""Whole models in less memory than their parts take, or faster than their weights and cache can be read."""

from results import derive, gpus, levels
from results.checks.finding import Found, Numbers, printed_range, said
from results.checks.memory import below_weights
from results.checks.speed import HEADROOM
from results.records import case_to_json

# The peaks of training in the shipped runs are 0.99 to 1.01 of the calculator's.
TRAINING = 0.9


def below_parts(numbers: Numbers) -> Found:
    """Less memory than weights and KV cache, or in training weights, gradients and the optimizer's states.

    Memory below the weights alone is reported by `below_weights`.
    """
    told = {m.measurement_id for rows, _ in below_weights(numbers) for m in rows}
    for m in numbers.of("peak_memory_mb"):
        parts = levels.level_of(m.case).parts_mb(case_to_json(m.case), m.mode)
        least = sum(parts.values())
        if parts and printed_range(m)[1] < least and m.measurement_id not in told:
            made_of = ", ".join(f"{name} {value / 1024:.1f}" for name, value in parts.items())
            yield said("below_parts", m, gib=m.value / 1024, least=least / 1024, made_of=made_of)


def below_training(numbers: Numbers) -> Found:
    """Less memory in training than the activations, too, take, by the calculator of results.levels."""
    told = {m.measurement_id for rows, _ in (*below_weights(numbers), *below_parts(numbers)) for m in rows}
    for m in numbers.of("peak_memory_mb"):
        if m.mode != "train" or not levels.level_of(m.case).whole_model:
            continue
        needs = levels.memory_mb(m.case, numbers.facts(m).memory, m.mode)
        if needs and printed_range(m)[1] < TRAINING * needs and m.measurement_id not in told:
            yield said("below_training", m, gib=m.value / 1024, needs=needs / 1024)


def above_step_bandwidth(numbers: Numbers) -> Found:
    """A decoding step in less time than its weights and cache are read in at the memory's bandwidth."""
    for m in numbers.of("latency_ms", "tokens_per_s"):
        peak = gpus.find(numbers.run(m).gpu_name)
        a_step = m.mode == "decode" and levels.level_of(m.case).whole_model
        moved = levels.bytes_moved(m.case, m.mode) if peak and a_step else None
        if not moved or not m.value or m.metric == "tokens_per_s" and not m.case.batch:
            continue
        step_ms = m.value if m.metric == "latency_ms" else 1e3 * m.case.batch / m.value
        rate = derive.gb_per_s(moved, step_ms)
        if rate > HEADROOM * peak.bandwidth_gb_per_s:
            facts = {"step": step_ms, "moved": moved / 1e9, "rate": rate, "peak": peak}
            yield said("above_step_bandwidth", m, gpu=numbers.run(m).gpu_name, **facts)
