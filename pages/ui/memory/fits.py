"""The longest sequence that each implementation reaches in a given amount of device memory."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, tables, text
from pages.ui.filters.select import box
from pages.ui.memory.by_seqlen import MemoryView, case_of
from pages.ui.shell.data import ask
from results import levels
from results.implementations import facts_of
from results.query.declared import of_rows

SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
THIS = "this device"


def choose(table: pd.DataFrame) -> dict[str, float]:
    """Ask for a memory size; return MiB by its name. The default is the memory of the device."""
    capacity = table["gpu_memory_mb"].max()
    sizes = [f"{size} GB" for size in SIZES_GB]
    own = [] if text.missing(capacity) else [THIS]
    about = "Device memory to judge by. A gigabyte is taken as 1024 MiB, as cards are sold."
    chosen = box("Does it fit in", "fits_in", [*own, *sizes], None if own else "24 GB", help=about)
    if chosen == THIS:
        return {"device memory": float(capacity)}
    return {f"{chosen}:": 1024.0 * int(chosen.split()[0])}


def longest(table: pd.DataFrame, capacity_mb: float) -> tuple[int | None, pd.DataFrame]:
    """Return the smallest batch of the longest sequences, and what fits at it by implementation.

    A seqlen that fits at a larger batch also counts, because it needs no more memory at this batch.
    """
    rows = table.sort_values(["seqlen", "batch"], ascending=[False, True]).to_dict("records")
    batch = next((int(row["batch"]) for row in rows if not text.missing(row["batch"])), None)
    kinds: dict[str, list[dict]] = {}
    for row in rows:
        kinds.setdefault(row["implementation"], []).append(row)
    columns = {"measured": "Int64", "no_more_from": "Int64", "formula": "Int64", "peak_mb": float}
    fits = [{"implementation": name, **_fit(of_kind, batch, capacity_mb)} for name, of_kind in kinds.items()]
    return batch, pd.DataFrame(fits).astype(columns).sort_values(["measured", "formula"], ascending=False)


def show(table: pd.DataFrame, capacity_mb: float, view: MemoryView) -> Callable[[], None]:
    """Draw the answer in a table; return what offers it as a file."""
    batch, fits = longest(table, capacity_mb)
    what = f"Longest sequence in {text.mib(capacity_mb)}{'' if batch is None else f' at batch {batch}'}"
    st.subheader(what)
    tables.show_table(fits.to_dict("records"), tables.declared("fits"), f"{what}, by implementation")
    title = replace(view.title(table), what=what)
    made = partial(fits.assign, dtype=table["dtype_name"].iloc[0], batch=batch, capacity_mb=capacity_mb)
    return partial(messages.download_slice, "Download what fits", title, view.taken, made, "fits_csv")


def _fit(rows: list[dict], batch: int | None, capacity_mb: float) -> dict:
    """Return the longest sequences of one implementation; the rows have the longest first."""
    inside = next((row for row in rows if row["value"] <= capacity_mb), {})
    beyond = [row for row in rows if row["value"] > capacity_mb or row["status"] == "oom"]
    return {
        "measured": inside.get("seqlen"),
        "peak_mb": inside.get("value"),
        "no_more_from": min((row["seqlen"] for row in beyond if batch in (None, row["batch"])), default=None),
        "formula": _by_formula(rows[0] | {"batch": batch}, capacity_mb, inside.get("seqlen") or 0),
    }


def _by_formula(row: dict, capacity_mb: float, measured: int) -> int | None:
    """Return the longest seqlen that fits by formula, or the longest measured one if that is longer.

    Return None if nothing fits or is known. If no measurement confirms the formula, the result is a power of two.
    """
    law = facts_of(row["implementation"], ask(of_rows), row["run_id"]).memory
    predicted = levels.largest_seqlen(case_of(row), law, row["mode"], capacity_mb)
    return max(predicted, measured) or None if predicted is not None else None
