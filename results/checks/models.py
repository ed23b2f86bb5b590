"""Whole models in less memory than their parts take, or faster than their weights and cache can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results import derive, gpus, levels
from results.checks.finding import Numbers, printed_range, what
from results.checks.memory import below_weights
from results.checks.speed import HEADROOM
from results.records import Measurement, case_to_json

# The peaks of training in the shipped runs are 0.99 to 1.01 of the calculator's.
TRAINING = 0.9

Found = Iterator[tuple[Sequence[Measurement], str]]


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
            yield (
                (m,),
                f"{what(m)} is said to take {m.value / 1024:.1f} GiB, but its parts take {least / 1024:.1f} GiB "
                f"({made_of}).",
            )


def below_training(numbers: Numbers) -> Found:
    """Less memory in training than the activations, too, take, by the calculator of results.levels."""
    told = {m.measurement_id for rows, _ in (*below_weights(numbers), *below_parts(numbers)) for m in rows}
    for m in numbers.of("peak_memory_mb"):
        if m.mode != "train" or not levels.level_of(m.case).whole_model:
            continue
        needs = levels.memory_mb(m.case, numbers.facts(m).memory, m.mode)
        if needs and printed_range(m)[1] < TRAINING * needs and m.measurement_id not in told:
            yield (
                (m,),
                f"{what(m)} is said to take {m.value / 1024:.1f} GiB, but weights, training states and what is saved "
                f"for the backward take {needs / 1024:.1f} GiB.",
            )


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
            yield (
                (m,),
                f"{what(m)} takes {step_ms:.4g} ms a step; reading {moved / 1e9:.3g} GB of weights and cache in that "
                f"time is {rate:.0f} GB/s, above the {peak.bandwidth_gb_per_s:g} of {numbers.run(m).gpu_name} "
                f"({peak.source}).",
            )
