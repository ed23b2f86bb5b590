"""GPUs compared on the shapes they share: time, operations per second, shares of peaks, clock, energy.

A shape is shared where every field that two sources say is the same; what one leaves open is taken from the other and
named. Kernel time is never compared with eager time; a time with an unknown timing is compared with both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from results import derive, levels
from results.implementations import Declared, facts_of
from results.levels import level_of, names
from results.query.declared import of_rows
from results.records import CASE_FIELDS, Case, case_to_json, compatible
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

COLUMNS = (
    "shape", "gpu", "mode", "timing", "dtype", "seqlen", "head_dim", "batch", "num_heads", "causal", "window_size",
    "latency_ms", "tflops", "percent_of_peak", "percent_of_measured", "flop_per_cycle_sm", "joules", "gflop_per_joule",
    "gflops_per_watt", "assumed", "run_id",
)  # fmt: skip
_ROW = (
    "run_id", "gpu_name", "sm_count", "power_limit_w", "tf32", "measured_tflops", "mode", "timing", "value",
    "sm_clock_mhz", "joules",
)  # fmt: skip


def pairs(store: Store) -> list[tuple[str, str]]:
    """Return the pairs of GPUs that share implementation, mode, seqlen and head_dim; those with most first."""
    return store.rows(_SQL("pairs"))


def implementations(store: Store, gpus: Sequence[str]) -> list[str]:
    """Return what every one of the GPUs has times of; most numbers first."""
    return [name for (name,) in store.rows(_SQL("implementations"), [list(gpus), len(gpus)])]


def side_by_side(store: Store, gpus: Sequence[str], implementation: str) -> pd.DataFrame:
    """Return a row a GPU and shared shape; `shape` numbers the shapes. Of several runs of a GPU the latest counts."""
    by_gpu = {gpu: _rows(store, gpu, implementation) for gpu in gpus}
    first, *others = sorted(gpus, key=lambda gpu: len(by_gpu[gpu]), reverse=True)
    records, said = [], {name: of_rows(store, name) for name in names()}
    for place, row in enumerate(by_gpu[first]):
        found = [row, *(_fitting(row, by_gpu[gpu]) for gpu in others)]
        if None not in found:
            case = _completed([each["case"] for each in found])
            records += [{"shape": place} | _derived(each, case, said) for each in found]
    return pd.DataFrame(records, columns=[*COLUMNS])


def _rows(store: Store, gpu: str, implementation: str) -> list[dict[str, Any]]:
    found = store.rows(_SQL("rows", fields=", ".join(f"m.{name}" for name in CASE_FIELDS)), [gpu, implementation])
    rows = [dict(zip((*_ROW, *CASE_FIELDS), values, strict=True)) for values in found]
    return [row | {"implementation": implementation, "case": Case(**{n: row[n] for n in CASE_FIELDS})} for row in rows]


def _fitting(row: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of a shape and mode that says most of it; seqlen must be said."""
    found = [
        other
        for other in others
        if other["mode"] == row["mode"]
        and (other["timing"] == row["timing"] or None in (other["timing"], row["timing"]))
        and row["case"].seqlen_q == other["case"].seqlen_q is not None
        and compatible(row["case"], other["case"])
    ]
    return min(found, key=lambda other: len(_open(other)), default=None)


def _open(row: dict[str, Any]) -> list[str]:
    """Return the fields of the case that the row's source does not say."""
    return [name for name in CASE_FIELDS if row[name] is None]


def _completed(cases: Sequence[Case]) -> Case:
    said = {name: value for case in cases for name, value in case_to_json(case).items() if value is not None}
    return replace(cases[0], **said)


def _derived(row: dict[str, Any], case: Case, said: Mapping[str, Declared]) -> dict[str, Any]:
    """Return a row's numbers; `case` is its case with what the other GPUs' rows say of it."""
    fields, latency = case_to_json(case), row["value"]
    flops = levels.flops(case, row["mode"])
    rate = derive.tflops(flops, latency)
    facts = facts_of(row["implementation"], said[level_of(case).name], row["run_id"])
    tf32 = True if facts.tf32 else row["tf32"]
    dtype = facts.multiplies(case.dtype, case.head_dim, row["gpu_name"])
    measured = json.loads(row["measured_tflops"]) if row["measured_tflops"] else {}
    best = derive.measured_peak_tflops(measured, dtype, tf32=tf32)
    cycles = latency * 1e3 * row["sm_clock_mhz"] if row["sm_clock_mhz"] else None
    return {
        **{name: fields[name] for name in ("dtype", "head_dim", "batch", "num_heads", "causal", "window_size")},
        "seqlen": getattr(case, level_of(case).columns.field),
        "gpu": row["gpu_name"],
        "mode": row["mode"],
        "timing": row["timing"],
        "latency_ms": latency,
        "tflops": rate,
        "percent_of_peak": derive.percent_of_peak(rate, derive.peak_tflops(row["gpu_name"], dtype, tf32=tf32)),
        "percent_of_measured": derive.percent_of_peak(rate, best),
        "flop_per_cycle_sm": flops / cycles / row["sm_count"] if flops and cycles and row["sm_count"] else None,
        "joules": row["joules"],
        "gflop_per_joule": flops / row["joules"] / 1e9 if flops and row["joules"] else None,
        "gflops_per_watt": 1e3 * rate / row["power_limit_w"] if rate and row["power_limit_w"] else None,
        "assumed": ", ".join(name for name in _open(row) if fields[name] is not None),
        "run_id": row["run_id"],
    }
