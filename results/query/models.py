"""Whole models as they were measured: generation, prefill and training, with what follows from a latency.

Of each case one run of a GPU counts (results/counting.py), one that measured the whole call before others,
and device time before plain calls where it has both. An extrapolated latency is used only if nothing was measured;
how far the method was off about models that the same run measured is its `method_error`.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from results import derive, levels
from results.counting import counting_run
from results.implementations import Declared, facts_of
from results.levels.model import FLOP_CONVENTIONS, training_flops
from results.query.bandwidth import of_call
from results.query.declared import of_rows
from results.records import CASE_FIELDS
from results.slice import CASE_KEY
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

WHOLE = ("prefill", "decode", "train")
PARTS = ("fwd", "bwd", "step")  # parts of a training step, each timed separately
_SETTINGS = ("dtype", "num_layers", "optimizer", "checkpointing", "compiled")
CALLS = (
    "subject", "mode", "implementation", "batch", "seqlen_k", *_SETTINGS, "timing", "extrapolated", "method_error",
    "latency_ms", "p20", "p80", "tokens_per_s", "tb_per_s", "percent_of_copy", "attention_share", "cache_dtype",
    "peak_memory_mb", "formula_mb", "of_formula", "memory_per_token_mb", "status", "note", "source", "run_id",
)  # fmt: skip
STEPS = (
    "subject", "implementation", "batch", "seqlen_k", *_SETTINGS, "extrapolated", "method_error",
    "latency_ms",
    *(f"{part}_ms" for part in PARTS),
    "samples_per_s", "tokens_per_s", "tflops", "mfu", "attention_share", "peak_memory_mb", "formula_mb",
    "of_formula", "memory_per_token_mb", "status", "note", "source", "run_id",
)  # fmt: skip


def gpus(store: Store, subject: str) -> list[str]:
    """Return the devices that have latencies of a model, most first."""
    return [gpu for (gpu,) in store.rows(_SQL("gpus"), [subject])]


def subjects(store: Store) -> list[str]:
    """Return the models that have a measured latency, most first."""
    return [subject for (subject,) in store.rows(_SQL("subjects"))]


def calls(store: Store, subject: str, gpu: str) -> pd.DataFrame:
    """Return a row for each case, implementation and mode of a model on a GPU, in the columns CALLS."""
    said = of_rows(store, "model")
    found = [_call(row, said) for row in _rows(store, subject, gpu)]
    order = ["mode", "dtype", "batch", "seqlen_k", "implementation", "extrapolated"]
    return pd.DataFrame(found, columns=[*CALLS]).sort_values(order, ignore_index=True)


def training_steps(store: Store, subject: str, gpu: str, convention: str = "palm") -> pd.DataFrame:
    """Return a row for each training case and implementation, the parts and the whole, in the columns STEPS.

    `mfu` counts the operations by a convention of FLOP_CONVENTIONS, over the peak of the device's datasheet.
    """
    if convention not in FLOP_CONVENTIONS:
        raise ValueError(f"Unknown convention {convention!r}. Available: {', '.join(FLOP_CONVENTIONS)}.")
    rows = _rows(store, subject, gpu)
    whole = [row for row in rows if row["mode"] == "train"]
    times = {(*_key(row), row["mode"]): row["latency_ms"] for row in rows if not row["extrapolated"]}
    said = of_rows(store, "model")
    found = []
    for row in whole:
        parts = {} if row["extrapolated"] else {f"{part}_ms": times.get((*_key(row), part)) for part in PARTS}
        flops = training_flops(row, convention)
        rate = derive.tflops(flops, row["latency_ms"])
        peak = derive.peak_tflops(row["gpu_name"], row["dtype"], tf32=False)
        samples = derive.samples_per_s(row, row["latency_ms"])
        rates = {"samples_per_s": samples, "tflops": rate, "mfu": derive.percent_of_peak(rate, peak)}
        found.append(_call(row, said) | parts | rates)
    order = ["seqlen_k", "batch", "implementation"]
    return pd.DataFrame(found, columns=[*STEPS]).sort_values(order, ignore_index=True)


def _rows(store: Store, subject: str, gpu: str) -> list[dict[str, Any]]:
    """Return latencies of a model with the other numbers of the same case, run and mode."""
    counting = counting_run(CASE_KEY, "whole", "measured > 1")
    table = store.query(_SQL("rows", whole=[*WHOLE], counting=counting), [subject, gpu])
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    errors: dict[tuple[str, str, str], float] = {}  # how far extrapolation was off at most, in percent of what is right
    if any(row["extrapolated"] for row in rows):
        errors = {(run, name, mode): error for run, name, mode, error in store.rows(_SQL("method_errors"), [gpu])}
    known = {(*_key(row), row["mode"]) for row in rows if not row["extrapolated"] and row["latency_ms"]}
    return [
        row | {"method_error": errors.get(_place(row)) if row["extrapolated"] else None}
        for row in rows
        if not row["extrapolated"] or (row["latency_ms"] and (*_key(row), row["mode"]) not in known)
    ]


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["run_id"], row["implementation"], row["mode"]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in CASE_FIELDS), row["implementation"])


def _call(row: Mapping[str, Any], said: Declared) -> dict[str, Any]:
    """Return a row with what follows from its latency, its peak and its case."""
    law = facts_of(row["implementation"], said, row["run_id"]).memory
    latency, peak = row["latency_ms"], row["peak_memory_mb"]
    # The formula is for a whole step.
    formula = None if row["mode"] in PARTS else levels.memory_mb(row, law, row["mode"])
    return {
        **row,
        **of_call(row),
        "extrapolated": bool(row["extrapolated"]),
        "tokens_per_s": derive.tokens_per_s(row, latency),
        "formula_mb": formula,
        "of_formula": peak / formula if peak and formula else None,
        "memory_per_token_mb": derive.memory_per_token_mb(row, peak),
    }
