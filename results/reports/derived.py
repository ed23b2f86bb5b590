"""Metrics that reports print and runs do not store: rates and memory by formula, derived from a run's numbers.

A derived number keeps the case, the timing and the status of its source. Numbers derived from an extrapolated latency
are flagged, so that they are never shown as measured.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from results import derive, levels
from results.implementations import ImplementationFacts, facts_of
from results.levels.tensors import kv_cache_mb
from results.records import Measurement, Run, Status, case_to_json

EXTRAPOLATED = "extrapolated"


def enriched(run: Run, measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of a run and the numbers derived from them. A failure applies to the peak memory too."""
    peaks = {_key(m) for m in measurements if m.metric == "peak_memory_mb"}
    failed = [
        replace(m, metric="peak_memory_mb", timing=None)
        for m in measurements
        if m.metric == "latency_ms" and m.status is not Status.OK and _key(m) not in peaks
    ]
    known = [*measurements, *failed]
    facts = {name: facts_of(name, run.implementations) for name in {m.implementation for m in known}}
    return [*known, *(each for m in known for each in _derived(run, m, facts[m.implementation]))]


def _key(m: Measurement) -> tuple:
    return m.case, m.implementation, m.mode


def _derived(run: Run, m: Measurement, facts: ImplementationFacts) -> Iterator[Measurement]:
    if m.metric == "latency_ms":
        yield from (_following(m, metric, value) for metric, value in _of_latency(run, m, facts).items())
    elif m.metric == "latency_extrapolated_ms":
        rates = _of_latency(run, m, facts)
        found = (_following(m, name, value) for name, value in rates.items() if name.endswith("_per_s"))
        yield from (replace(each, flags=(EXTRAPOLATED,)) for each in found)
    elif m.metric == "peak_memory_mb":
        yield _following(m, "memory_per_token_mb", derive.memory_per_token_mb(case_to_json(m.case), m.value))
        for metric, value in _by_formula(m, facts).items():
            yield replace(_following(m, metric, None), status=Status.OK, value=value, statistic="single")


def _following(m: Measurement, metric: str, value: float | None) -> Measurement:
    """Return a number derived from another one. If it is not known, its status is skipped."""
    status = m.status if m.status is not Status.OK or value is not None else Status.SKIPPED
    ok = status is Status.OK
    names = ("run_id", "case", "implementation", "mode", "timing", "note")
    known: dict[str, Any] = {name: getattr(m, name) for name in names}
    number: dict[str, Any] = {"value": value, "statistic": "single"} if ok else {}
    return Measurement(**known, metric=metric, status=status, **number)


def _of_latency(run: Run, m: Measurement, facts: ImplementationFacts) -> dict[str, float | None]:
    fields = case_to_json(m.case)
    if levels.level_of(m.case).whole_model:
        rates = {"tokens_per_s": derive.tokens_per_s(fields, m.value)}
        return rates | ({"samples_per_s": derive.samples_per_s(fields, m.value)} if m.mode == "train" else {})
    rate = derive.tflops(levels.flops(m.case, m.mode), m.value)
    peak = derive.peak_tflops(run.gpu_name, facts.multiplies(m.case.dtype), tf32=facts.tf32 or bool(run.tf32))
    per_token = derive.time_per_token_us(fields, m.value)
    return {
        "tflops": rate,
        "peak_percent": derive.percent_of_peak(rate, peak),
        "time_per_token_ms": per_token and per_token / 1e3,
    }


def _by_formula(m: Measurement, facts: ImplementationFacts) -> dict[str, float]:
    """Return the memory of score matrices and of the cache of a forward call, which runs do not measure separately."""
    parts = levels.memory_parts(m.case, facts.memory, m.mode)
    if not levels.level_of(m.case).one_attention or m.mode != "fwd" or parts is None:
        return {}
    return {"attention_memory_mb": parts.matrices, "kv_cache_mb": kv_cache_mb(case_to_json(m.case))}
