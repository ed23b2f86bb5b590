"""Errors relative to float64, compared with a plain implementation in the same dtype, and the speed at that error.

For each case, errors and times come from one run (results/counting.py): a run with torch_naive's error, and with times
or, if kinds of inputs are compared, with other inputs. The error of out is paired with the time of the forward, the
errors of dq, dk and dv with the time of the backward.
"""

import math
from dataclasses import replace

import pandas as pd

from results.compare.verdicts import BAND
from results.counting import MEASURED, counting_run
from results.derive import geometric_mean
from results.slice import WORKLOAD, Filters, where
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

NAIVE = "torch_naive"
TENSORS = ("out", "dq", "dk", "dv")
MEASURES = {"error": "relative RMS error", "max_error": "largest absolute error"}
FAILED = "incorrect"  # flag of the errors of a pass that fails the check where nothing is timed
NORMAL = "normal"  # also where a source says nothing: journals from before inputs were recorded drew normal ones
SUMMARY = (
    "implementation", "cases", "error", "worst", "over_naive", "worst_over_naive", "compared", "speedup", "lowest",
    "highest", "frontier",
)  # fmt: skip


def errors(
    store: Store, filters: Filters, tensor: str, measure: str = "error", *, by_inputs: bool = False
) -> pd.DataFrame:
    """Return a row a case and implementation: error, torch_naive's error, time and speedup over the slice's baseline.

    `fails` is what the check said where a pass is too far off to be timed. `by_inputs`: of runs that varied the inputs.
    """
    condition, params = where(replace(filters, mode=None, timing=None, implementation=()), without=("workload",))
    if filters.workload:  # its name ends with its inputs where they are not normal
        condition += f" AND split_part({WORKLOAD}, ', ', 1) = ?"
        params = [*params, filters.workload.split(", ")[0]]
    counts = counting_run("cell", "naive_error IS NOT NULL", "varied" if by_inputs else "timed")
    found = store.query(
        _SQL(
            "errors",
            normal=NORMAL,
            condition=condition,
            naive=NAIVE,
            measured=MEASURED.format(of="cell"),
            counts=counts,
            failed=FAILED,
        ),
        [*params, f"{measure}_{tensor}", filters.baseline, "fwd" if tensor == "out" else "bwd", filters.timing],
    )
    names = [*filters.implementation, NAIVE, filters.baseline]
    return found[found["implementation"].isin(names)] if filters.implementation else found


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row an implementation, the closest first: geometric means over its cases, the worst, the frontier.

    Speedups and shares of torch_naive's error are of the cases where both are known. On the frontier is who no other
    beats.
    """
    rows = [{"implementation": name, **_of_one(those)} for name, those in table.groupby("implementation", sort=True)]
    known = [row for row in rows if row["speedup"] and row["error"] is not None]
    for row in rows:
        row["frontier"] = row in known and not any(_beats(other, row) for other in known)
    return pd.DataFrame(rows, columns=[*SUMMARY]).sort_values("error", ignore_index=True)


def _beats(other: dict, row: dict) -> bool:
    """Return whether one is better in one of speed and error by more than the band, and worse in neither."""
    speed = other["speedup"] / row["speedup"]
    error = row["error"] / other["error"] if other["error"] else 1.0 if not row["error"] else math.inf
    return min(speed, error) >= 1 / (1 + BAND) and max(speed, error) > 1 + BAND


def _of_one(rows: pd.DataFrame) -> dict[str, object]:
    shares, speedups = rows["over_naive"].dropna(), rows["speedup"].dropna()
    return {
        "cases": len(rows),
        "error": geometric_mean(error for error in rows["error"] if error > 0) or 0.0,
        "worst": rows["error"].max(),
        "over_naive": geometric_mean(share for share in shares if share > 0),
        "worst_over_naive": shares.max() if len(shares) else None,
        "compared": len(speedups),
        "speedup": geometric_mean(speedups),
        "lowest": speedups.min() if len(speedups) else None,
        "highest": speedups.max() if len(speedups) else None,
    }
