"""Metrics that reports print and runs do not store: rates and memory by formula.

A derived number keeps the case, the timing and the status of its source. Numbers derived from an extrapolated latency
are flagged, so that they are never shown as measured. Memory tables can be filled by formula alone, without a run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from results import derive, levels
from results.implementations import ImplementationFacts, facts_of
from results.levels.model_table import model_case
from results.levels.tensors import kv_cache_mb
from results.records import Case, Measurement, Run, Status, attention_case, case_to_json
from results.reports.layout import EXTRAPOLATED, Facts, Grid, Labels
from results.reports.own import OwnNumbers, all_facts

SUFFIX = ": by formula"
_DTYPE = {"op": "float16", "model": "bfloat16"}  # our dtype, because the report does not state one


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


def formula_numbers(grid: Grid, rows: Iterable[Labels], implementations: Mapping[str, str]) -> OwnNumbers:
    """Return peaks by formula for the rows of a table, as numbers that fill it.

    `implementations` maps a published name to the implementation whose memory law is used.
    """
    peaks = {(m.case, m.implementation): m for labels in rows for m in _peaks(grid, labels, implementations)}
    return OwnNumbers(enriched(Run("by formula", "local"), [*peaks.values()]), implementations)


def needed_mb(facts: Facts, name: str) -> float | None:
    """Return the memory of a model with an implementation inside, in MiB; None if its memory law is not known."""
    return levels.memory_mb(_case(facts), facts_of(name).memory, facts["mode"])


def _peaks(grid: Grid, labels: Labels, implementations: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the peak of each implementation of a row."""
    for facts in all_facts(grid, labels):
        case, mode = _case(facts), facts["mode"]
        for published in (facts["implementation"], facts.get("baseline")):
            name = implementations.get(published or "")
            value = levels.memory_mb(case, facts_of(name).memory, mode) if name else None
            if value:
                yield Measurement("", case, name, "peak_memory_mb", Status.OK, mode, value=value, statistic="single")


def _case(facts: Facts) -> Case:
    """Return a complete case from facts: full mask for the operator, all layers for a model."""
    if facts["level"] == "op":
        sizes = {name: facts[name] for name in ("batch", "num_heads", "seqlen", "head_dim")}
        return attention_case(**sizes, dtype=_DTYPE["op"], causal=False)
    optimizer = "adamw_bf16" if facts["mode"] == "train" else "none"
    sizes = {"batch": facts["batch"], "seqlen": facts["seqlen"], "query_tokens": facts.get("seqlen_q")}
    return model_case(facts["subject"], dtype=_DTYPE["model"], optimizer=optimizer, compiled=True, **sizes)
