"""Bandwidth of each case in a slice: the least traffic of a call over its time, and its share of a copy's bandwidth."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from results import derive, levels
from results.query.pairing import cells
from results.records import CASE_FIELDS
from results.slice import Filters, level_in
from results.sql import SqlFile
from results.store.database import Store

_OF_CALL = ("mode", "shape", "implementation", "latency_ms", "p20", "p80", "n", "statistic", "status", "note")
DERIVED = ("tb_per_s", "percent_of_copy", "copy_ms")
_SQL = SqlFile(__file__)


def rows(store: Store, filters: Filters) -> pd.DataFrame:
    """Return every case and implementation of the slice, in order of its level's axes.

    `tb_per_s` counts the level's least traffic, `percent_of_copy` is its share of what a large copy moved on that
    machine, and `copy_ms` the time that the traffic takes at that rate. They are missing where the case, the time or
    the machine's rate is not known.
    """
    level = level_in(filters)
    length, other = level.columns, level.rows
    ctes, params = cells(store, filters)
    fields = ", ".join(f"paired.{name}" for name in (*CASE_FIELDS, *_OF_CALL, "source", "run_id"))
    table = store.query(_SQL("rows", ctes=ctes, fields=fields, length=length, other=other), params)
    derived = [of_call(row) for row in table.to_dict("records")]
    axes = {axis.column: table[f"placed_{axis.column}"] for axis in (length, other)}  # no field of a case is named so
    found = pd.DataFrame(derived, index=table.index, columns=[*DERIVED], dtype=float)
    return table.drop(columns=[f"placed_{name}" for name in axes]).assign(**axes).join(found)


def of_call(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return DERIVED of one call: a row with the fields of its case, its mode, `latency_ms` and `measured_gbs`."""
    latency, copy = (levels.tensors.known(row[name]) for name in ("latency_ms", "measured_gbs"))
    moved = levels.bytes_moved(row, row["mode"])
    rate = derive.gb_per_s(moved, latency)
    return {
        "tb_per_s": rate and rate / 1000,
        "percent_of_copy": 100 * rate / copy if rate and copy else None,
        "copy_ms": moved / copy / 1e6 if moved and copy else None,
    }
