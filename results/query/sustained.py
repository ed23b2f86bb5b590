"""Traces of cells that ran on and on: what was reached in the first second, and what remained once the GPU was hot."""

import math
import re
from typing import Any

import pandas as pd

from results import derive, levels
from results.records import CASE_FIELDS
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

# The quantities of a trace, in display order.
QUANTITIES = ("sustained_tflops", "sustained_clock_mhz", "sustained_power_w", "sustained_temperature_c")
COLUMNS = (
    "gpu_name", "implementation", *CASE_FIELDS, "mode", "burst_tflops", *QUANTITIES, "of_burst", "cold_tflops",
    "of_cold", "cold_clock_mhz", "power_limit_w", "status", "note", "source", "created", "run_id",
)  # fmt: skip
CELL = ("run_id", "implementation", *CASE_FIELDS, "mode")
_KEY = ", ".join(CELL)
_SECONDS = re.compile(r"for (\d+(?:\.\d+)?) s\b")  # the duration in the runner's note
_SLICE_S = 0.25
_POWER_LAGS_S = 1.25  # the driver averages power over a second, and a slice samples it at its end


def traces(store: Store) -> pd.DataFrame:
    """Return a row a trace, newest first, with percentages of the first second and of a call with a cold L2."""
    pivoted = ", ".join(f"max(value) FILTER (metric = '{name}') AS {name}" for name in ("burst_tflops", *QUANTITIES))
    # the run is found by the trace first, so that only the measurements of such runs are looked at
    table = store.query(_SQL("traces", key=_KEY, pivoted=pivoted))
    cold = [
        derive.tflops(levels.flops(row, row["mode"]), _known(row["latency_ms"]))
        for row in table.astype(object).where(table.notna(), None).to_dict("records")
    ]
    table = table.assign(cold_tflops=pd.Series(cold, index=table.index, dtype=float))
    for name, whole in (("of_burst", "burst_tflops"), ("of_cold", "cold_tflops")):
        table[name] = 100 * table["sustained_tflops"] / table[whole]
    return table[[*COLUMNS]]


def energies(store: Store) -> pd.DataFrame:
    """Return a row for each kernel whose energy was measured: joules per TFLOP under load, and the rates.

    `cold_tflops` is the rate of a sampled call. `tflops` is the rate under the load that energy is measured under, from
    its mean power; in runs without that number the rate of the sampled call, or the lower one that the power limit
    allows with these joules. A case whose work is unknown has no row. `cell` numbers the shapes and modes of a run;
    those with most implementations come first. `setting` numbers the shapes and modes of a GPU, over all its runs.
    """
    table = store.query(_SQL("energies", key=_KEY))
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    work = pd.Series([levels.flops(row, row["mode"]) for row in rows], index=table.index, dtype=float)
    for name, whose in (("cell", "run_id"), ("setting", "gpu_name")):
        table[name] = table.groupby([whose, "mode", *CASE_FIELDS], dropna=False, sort=False).ngroup()
    rates = {"cold_tflops": work / table["latency_ms"] / 1e9, "joules_per_tflop": 1e12 * table["joules"] / work}
    allowed = table["power_limit_w"].astype(float) / rates["joules_per_tflop"]
    under_load = table["watts"] / rates["joules_per_tflop"]
    table = table.assign(**rates, tflops=under_load.fillna(rates["cold_tflops"].clip(upper=allowed)))
    return table[table[[*rates]].map(math.isfinite).all(axis=1)]  # a case of unknown sizes has no rate


def series(store: Store, trace: dict[str, object]) -> pd.DataFrame:
    """Return a trace slice by slice: `seconds`, each quantity that was watched, and joules per TFLOP."""
    of_cell = " AND ".join(f"{name} IS NOT DISTINCT FROM ?" for name in CELL)
    rows = store.rows(
        f"SELECT metric, samples, note FROM measurements WHERE list_contains(?, metric) AND {of_cell}",
        [list(QUANTITIES), *(_known(trace[name]) for name in CELL)],
    )
    found = {metric: samples for metric, samples, _ in rows if samples}
    if "sustained_tflops" not in found:
        return pd.DataFrame(columns=["seconds", *QUANTITIES])
    count = len(found["sustained_tflops"])
    said = next((match for *_, note in rows if (match := _SECONDS.search(note or ""))), None)
    step = float(said[1]) / count if said else _SLICE_S
    known = {name: found[name] for name in QUANTITIES if len(found.get(name, ())) == count}
    table = pd.DataFrame({"seconds": [step * (place + 1) for place in range(count)], **known})
    if "sustained_power_w" in table:
        energy = table["sustained_power_w"] / table["sustained_tflops"]
        table["joules_per_tflop"] = energy.where(table["seconds"] > _POWER_LAGS_S)
    return table


def _known(value: object) -> Any:
    """Return a number as Python's own; None for a table's NaN or NA."""
    if value is None or str(value) in ("nan", "<NA>", "NaT"):
        return None
    return value.item() if hasattr(value, "item") else value
