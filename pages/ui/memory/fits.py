"""Does it fit? The longest sequence that each implementation reaches in a given amount of device memory."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, plain_html, text
from pages.ui.draw.plain_html import TableColumn
from pages.ui.memory.by_seqlen import case_of
from pages.ui.shell.data import ask
from results import levels
from results.implementations import facts_of
from results.query.declared import declared

SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
THIS = "this device"
_COLUMNS = {
    "implementation": TableColumn("implementation"),
    "dtype": TableColumn("dtype", text=True),
    "measured": TableColumn("longest measured", "{:,}".format),
    "peak_mb": TableColumn("takes", text.mib),
    "no_more_from": TableColumn("does not fit from", "{:,}".format),
    "formula": TableColumn(
        "longest by formula",
        "{:,}".format,
        "Where its predicted peak reaches the memory, at the batch beside it",
    ),
    "batch": TableColumn("at batch", "{:,}".format),
}


def choose(table: pd.DataFrame) -> dict[str, float]:
    """Ask for a memory size; returns MiB by its name, the device's own unless another is chosen."""
    capacity = table["gpu_memory_mb"].max()
    sizes = [f"{size} GB" for size in SIZES_GB]
    own = [] if text.missing(capacity) else [THIS]
    chosen = st.selectbox(
        "Does it fit in",
        [*own, *sizes],
        index=0 if own else sizes.index("24 GB"),
        key="fits_in",
        bind="query-params",
        help="Device memory to judge by. A gigabyte is taken as 1024 MiB, as cards are sold.",
        width=220,
    )
    if chosen == THIS:
        return {"device memory": float(capacity)}
    return {f"{chosen}:": 1024.0 * int(chosen.split()[0])}


def longest(table: pd.DataFrame, capacity_mb: float) -> pd.DataFrame:
    """Return by implementation and dtype the longest seqlen measured within the capacity, and by formula."""
    groups: dict[tuple[str, str | None], list[dict]] = {}
    for row in table.to_dict("records"):
        groups.setdefault((row["implementation"], None if text.missing(row["dtype"]) else row["dtype"]), []).append(row)
    rows = []
    for (name, dtype), found in sorted(groups.items(), key=str):
        best = max((row for row in found if row["value"] <= capacity_mb), key=lambda row: row["seqlen"], default={})
        longest_row = best or max(found, key=lambda row: row["seqlen"])
        beyond = [row["seqlen"] for row in found if row["value"] > capacity_mb or row["status"] == "oom"]
        rows.append(
            {
                "implementation": name,
                "dtype": dtype,
                "measured": best.get("seqlen"),
                "peak_mb": best.get("value"),
                "no_more_from": min(beyond, default=None),
                "formula": _by_formula(longest_row, capacity_mb),
                "batch": longest_row["batch"],
            }
        )
    columns = {"measured": "Int64", "no_more_from": "Int64", "formula": "Int64", "batch": "Int64", "peak_mb": float}
    return pd.DataFrame(rows).astype(columns).sort_values(["dtype", "measured"], ascending=[True, False])


def show(table: pd.DataFrame, capacity_mb: float) -> None:
    """Draw the answer in a table, and offer it as a file."""
    capacity_words, fits = text.mib(capacity_mb), longest(table, capacity_mb)
    st.subheader(f"Longest sequence in {capacity_words}")
    alt = f"Longest sequence that fits in {capacity_words}, by implementation and dtype"
    plain_html.show_table(fits.to_dict("records"), _COLUMNS, alt)
    messages.download("Download what fits", "longest_that_fits", lambda: fits, "fits_csv")


def _by_formula(row: dict, capacity_mb: float) -> int | None:
    """Return the longest seqlen that fits by what the implementation keeps; None if nothing fits or is known.

    Where its memory was not confirmed by measurements, it is the largest power of two.
    """
    law = facts_of(row["implementation"], ask(declared)).memory
    return levels.largest_seqlen(case_of(row), law, row["mode"], capacity_mb) or None
