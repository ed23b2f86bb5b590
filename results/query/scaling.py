"""How latency, throughput and memory grow with seqlen, and how near they come to the device's roofs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from results import derive, gpus, levels
from results.implementations import FP8, Declared, facts_of
from results.levels.tensors import BF16X6, known, query_tokens
from results.paths import toml_of
from results.query.declared import of_rows, with_precision
from results.query.pairing import cells, paired
from results.records import CASE_FIELDS
from results.slice import RESULTS, Filters, level_in
from results.slice import where as filtered
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

_CASE = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "dtype", "causal")
_REST = tuple(name for name in CASE_FIELDS if name not in (*_CASE, "window_size"))
_KEY = (*_CASE, "window_size", *_REST, "implementation", "run_id")


@dataclass(frozen=True)
class Quantity:
    """Something that is drawn over seqlen."""

    label: str
    unit: str
    about: str


# The columns of `rows` that can be drawn.
_READ = toml_of(__file__)
QUANTITIES = {name: Quantity(**said) for name, said in _READ.items()}
ENERGIES = ("tokens_per_joule", "joules_per_tflop")


@dataclass(frozen=True)
class Roof:
    """What bounds the operations per second, at a rate of bytes: a sloped line that ends in a flat one."""

    name: str
    tflops: float | None
    gb_per_s: float | None
    source: str
    precision: str | None = None  # FP8, TF32 or bf16x6 if the products do not use the case's dtype
    measured: bool = False

    def at(self, intensity: float) -> float | None:
        """Return the most TFLOP/s at that many FLOP/byte."""
        sloped = self.gb_per_s * intensity / 1000 if self.gb_per_s else None
        return min((bound for bound in (self.tflops, sloped) if bound), default=None)


def rows(store: Store, filters: Filters) -> pd.DataFrame:
    """Return every case and implementation of the slice that says its seqlen, with the columns of QUANTITIES.

    `intensity` is in FLOP/byte, `gb_per_s` counts the level's least traffic.
    """
    ctes, params = cells(store, filters)
    if runs := {row.number.run_id for row in paired(store, filters)}:
        filters = replace(filters, run=tuple(sorted(runs)))  # looked through for what stands beside the times
    memory, memory_params = _beside(filters, "peak_memory_mb")
    energy, energy_params = _beside(filters, "energy_j")
    table = store.query(
        _SQL(
            "rows",
            ctes=ctes,
            memory=memory,
            energy=energy,
            key=", ".join(_KEY),
            same_memory=_same("memory"),
            same_energy=_same("energy"),
            same_any_memory=_same("any_memory"),
            same_any_energy=_same("any_energy"),
        ),
        [*params, *memory_params, *energy_params],
    )
    flops = [levels.flops(row, row["mode"]) for row in table.to_dict("records")]
    table.insert(table.columns.get_loc("gpu_name") + 1, "flops", pd.Series(flops, dtype=float))
    records = table.to_dict("records")
    said = of_rows(store, level_in(filters).name)
    derived = pd.DataFrame([_derived(row, said) for row in records], index=table.index, columns=_DERIVED, dtype=float)
    return table.drop(columns=["measured_tflops", "measured_gbs", *_REST]).join(derived)


def rows_of_energy(store: Store, filters: Filters) -> pd.DataFrame:
    """Return the rows of the slice's runs that measured energy: a run that counts for its times need hold none."""
    condition, params = filtered(filters, without=("timing", "mode"))
    found = store.rows(
        f"SELECT DISTINCT run_id FROM {RESULTS} WHERE metric = 'energy_j' AND status = 'ok' AND {condition}", params
    )
    table = rows(store, replace(filters, run=tuple(sorted(run_id for (run_id,) in found)) or ("",)))
    return table[table[[*ENERGIES]].notna().any(axis="columns")].reset_index(drop=True)


_DERIVED = [*(name for name in QUANTITIES if name != "latency_ms"), "intensity", "gb_per_s"]


def roofs(store: Store, filters: Filters, dtype: str | None) -> list[Roof]:
    """Return the device's roofs for a dtype: by its datasheet, and as measured by each run that measured them.

    In float32 there is one for IEEE products and one for TF32 ones, in 16 bits one for FP8, if they are in the slice.
    """
    ctes, params = cells(store, filters)
    reduced = [with_precision(store, precision, level_in(filters).name) for precision in ("tf32", "fp8", BF16X6)]
    kinds = store.rows(_SQL("roofs", ctes=ctes), [*params, *reduced, dtype])
    found: dict[str, Roof] = {}
    for run_id, gpu, tf32, fp8, six, measured, gbs in kinds:
        six = six and dtype == "float32"
        kind = " FP8" if fp8 else " bf16x6" if six else " TF32" if tf32 and dtype == "float32" else ""
        multiplied = FP8 if fp8 else BF16X6 if six else dtype
        peak = gpus.find(gpu)
        nominal = derive.peak_tflops(gpu, multiplied, tf32=tf32)
        if peak and nominal:
            name = f"data-sheet{kind}"
            found.setdefault(name, Roof(name, nominal, peak.bandwidth_gb_per_s, peak.source, kind.strip() or None))
        rate = derive.measured_peak_tflops(_rates(measured), multiplied, tf32=tf32)
        if rate or (gbs and not fp8 and not six):
            name = f"measured{kind}, {run_id}"
            source = f"a probe in run {run_id}"
            found[name] = Roof(name, rate, gbs, source, kind.strip() or None, measured=True)
    return list(found.values())


def growth(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the power of seqlen that the last doubling follows: 2 is four times as much for twice the length."""
    ordered = sorted((x, y) for x, y in points if x > 0 and y > 0)
    if len(ordered) < 2 or ordered[-1][0] == ordered[-2][0]:
        return None
    (x0, y0), (x1, y1) = ordered[-2:]
    return math.log(y1 / y0) / math.log(x1 / x0)


def _beside(filters: Filters, metric: str) -> tuple[str, list[object]]:
    """Return the query for another metric of the slice's cases, implementations and runs by mode, NULL if not said."""
    condition, params = filtered(filters, without=("timing", "mode"))
    keys = ", ".join(_KEY)
    return (_SQL("beside", keys=keys, condition=condition), [metric, *params])


def _same(table: str) -> str:
    return " AND ".join(f"{table}.{name} IS NOT DISTINCT FROM timed.{name}" for name in _KEY)


def _derived(row: Mapping[str, Any], said: Declared) -> dict[str, float | None]:
    latency, flops = known(row["latency_ms"]), known(row["flops"])
    rate = derive.tflops(flops, latency)
    facts = facts_of(row["implementation"], said, row["run_id"])
    tf32 = facts.tf32 or bool(known(row["tf32"]))
    dtype = facts.multiplies(row["dtype"], known(row["head_dim"]), row["gpu_name"])
    nominal = derive.peak_tflops(row["gpu_name"], dtype, tf32=tf32)
    measured = derive.measured_peak_tflops(_rates(row["measured_tflops"]), dtype, tf32=tf32)
    tokens, energy = query_tokens(row), known(row["energy_j"])
    moved = levels.bytes_moved(row, row["mode"])
    memory = known(row["peak_memory_mb"])
    return {
        "tflops": rate,
        "percent_of_peak": derive.percent_of_peak(rate, nominal),
        "percent_of_measured": derive.percent_of_peak(rate, measured),
        "time_per_token_us": derive.time_per_token_us(row, latency),
        "memory_per_token_kb": 1024 * memory / tokens if memory and tokens else None,
        "tokens_per_joule": derive.tokens_per_joule(row, energy),
        "joules_per_tflop": derive.joules_per_tflop(flops, energy),
        "intensity": flops / moved if flops and moved else None,
        "gb_per_s": derive.gb_per_s(moved, latency),
    }


def _rates(text: object) -> dict[str, float] | None:
    """Return the rates that the store keeps as JSON."""
    return json.loads(text) if isinstance(text, str) else None
