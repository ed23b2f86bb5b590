"""The cost of a cache form: each decoding case compared with the plain case of the same size in the same run.

`results.levels.decode.forms` says which forms there are. A case of several is compared for each of them, with the
others as they are.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from results.derive import geometric_mean
from results.levels.decode import forms
from results.levels.tensors import known
from results.records import CASE_FIELDS
from results.slice import Filters, where
from results.sql import SqlFile
from results.store.database import Store

COLUMNS = (
    "form", "beside", "implementation", "dtype", "seqlen", "batch", "latency_ms", "plain_ms", "ratio", "shape",
    "error", "error_original", "plain_error", "source", "run_id",
)  # fmt: skip
_ERRORS = {"error_out": "error", "error_out_original": "error_original"}
_SQL = SqlFile(__file__)


def rows(store: Store, filters: Filters) -> pd.DataFrame:
    """Return a row a form, case and implementation of the slice, whose shape and sizes do not count; see COLUMNS.

    `ratio` is the latency over that of the plain case, whose shape is `beside`: below 1 is faster. Of a quantised cache
    `error` is that of out against float64 on the cache as stored, `error_original` against the one before, and
    `plain_error` that of the plain case. Of pairs in several runs the newest counts.
    """
    found: dict[tuple[Hashable, ...], dict[str, Any]] = {}
    cases = _cases(store, filters)
    for key, row in cases.items():
        for form, plain_fields in forms(row):
            plain = cases.get(_key({**row, **plain_fields}))
            place = form, *key[1:]
            if plain is not None and place not in found:
                found[place] = _beside(form, row, plain)
    table = pd.DataFrame(list(found.values()), columns=[*COLUMNS])
    return table.sort_values(["form", "beside", "implementation", "batch", "seqlen"], ignore_index=True)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each form, compared shape and implementation: cases, mean and range of the ratio, errors."""
    return (
        table.groupby(["form", "beside", "implementation"])
        .agg(
            cases=("ratio", "size"),
            ratio=("ratio", geometric_mean),
            lowest=("ratio", "min"),
            highest=("ratio", "max"),
            error=("error", "median"),
            error_original=("error_original", "median"),
            plain_error=("plain_error", "median"),
        )
        .reset_index()
    )


def _cases(store: Store, filters: Filters) -> dict[tuple[Hashable, ...], dict[str, Any]]:
    """Return the timed cases with their errors by run, implementation and fields, newest runs first."""
    wide = replace(filters, shape=None, seqlen=(), batch=(), head_dim=())
    timed, times = where(wide)
    checked, errors = where(wide, without=("timing",))
    table = store.query(_SQL("cases", timed=timed, checked=checked), [*times, [*_ERRORS], *errors])
    ages = dict(store.kept("SELECT run_id, age FROM run_ages"))
    found: dict[tuple[Hashable, ...], dict[str, Any]] = {}
    for row in sorted(table.to_dict("records"), key=lambda row: ages[row["run_id"]]):
        said = {name: known(value) for name, value in row.items()}
        found.setdefault(_key(said), said)[said["metric"]] = said["value"]
    return {key: row for key, row in found.items() if row.get("latency_ms")}


def _key(row: Mapping[str, Any]) -> tuple[Hashable, ...]:
    return row["run_id"], row["implementation"], *(row[name] for name in CASE_FIELDS)


def _beside(form: str, row: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    errors = {name: row.get(metric) for metric, name in _ERRORS.items()} | {"plain_error": plain.get("error_out")}
    ratio = row["latency_ms"] / plain["latency_ms"]
    compared = {"beside": plain["shape"], "plain_ms": plain["latency_ms"], "ratio": ratio, "seqlen": row["seqlen_k"]}
    return {name: row[name] for name in COLUMNS if name in row} | {"form": form} | errors | compared
