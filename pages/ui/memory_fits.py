"""Does it fit? The longest sequence that each implementation reaches in a given amount of device memory.

What the peak is made of: given, kept for the backward, worked in, reserved, each beside the formula.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.draw import html, messages, text
from pages.ui.draw.html import Column
from pages.ui.memory import case_of
from pages.ui.shell.data import ask
from results import capacity, derive
from results.metrics import METRICS
from results.query import memory
from results.query.pages import Filters

SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
THIS = "this device"
_COLUMNS = {
    "implementation": Column("implementation"),
    "dtype": Column("dtype", text=True),
    "measured": Column("longest measured", "{:,}".format),
    "peak_mb": Column("takes", text.mib),
    "no_more_from": Column("does not fit from", "{:,}".format),
    "formula": Column(
        "longest by formula",
        "{:,}".format,
        "Where its predicted peak reaches the memory",
    ),
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
    """By implementation and dtype: the longest seqlen measured within the capacity, and by formula."""
    groups: dict[tuple[str, str | None], list[dict]] = {}
    for row in table.to_dict("records"):
        groups.setdefault((row["implementation"], None if text.missing(row["dtype"]) else row["dtype"]), []).append(row)
    rows = []
    for (name, dtype), found in sorted(groups.items(), key=str):
        best = max((row for row in found if row["value"] <= capacity_mb), key=lambda row: row["seqlen"], default={})
        beyond = [row["seqlen"] for row in found if row["value"] > capacity_mb or row["status"] == "oom"]
        rows.append(
            {
                "implementation": name,
                "dtype": dtype,
                "measured": best.get("seqlen"),
                "peak_mb": best.get("value"),
                "no_more_from": min(beyond, default=None),
                "formula": _by_formula(found[0], capacity_mb),
            }
        )
    columns = {"measured": "Int64", "no_more_from": "Int64", "formula": "Int64", "peak_mb": float}
    return pd.DataFrame(rows).astype(columns).sort_values(["dtype", "measured"], ascending=[True, False])


def show(table: pd.DataFrame, capacity_mb: float) -> None:
    """The answer in a table, and to take away."""
    capacity_words, fits = text.mib(capacity_mb), longest(table, capacity_mb)
    st.subheader(f"Longest sequence in {capacity_words}")
    alt = f"Longest sequence that fits in {capacity_words}, by implementation and dtype"
    html.show_table(fits.to_dict("records"), _COLUMNS, alt)
    messages.download("Download what fits", "longest_that_fits", lambda: fits, "fits_csv")


def _by_formula(row: dict, capacity_mb: float) -> int | None:
    """The longest that fits by what the implementation keeps; of one that is not ours the largest power of two by what
    its algorithm must keep. None where there is no formula or nothing fits."""
    case, kind = case_of(row), derive.memory_kind(row["implementation"])
    if known := capacity.largest_seqlen(case, row["implementation"], row["mode"], capacity_mb):
        return known
    longest, seqlen = None, 1
    while seqlen <= capacity.LONGEST:
        predicted = derive.predicted_memory_mb(case | {"seqlen_q": seqlen, "seqlen_k": seqlen}, kind, row["mode"])
        if predicted is None or predicted > capacity_mb:
            break
        longest, seqlen = seqlen, seqlen * 2
    return longest


_LABELS = {
    "given": ("formula: given", "q, k, v, and with a backward dout"),
    "returned": ("formula: returned", "out, and with a backward the gradients"),
    "matrices": ("formula: attention matrices", "scores and probabilities in memory"),
    "workspace": ("formula: workspace", "logsumexp, row sums, sums in float32, copies in another layout"),
    "peak": ("formula: peak", "all of these"),
    "kv_cache": ("KV cache of one layer", "keys and values kept for all tokens so far; not part of the call"),
    "of_formula": ("measured / formula", "Of the peak"),
}
_PART_COLUMNS = ("implementation", "dtype", "seqlen_q", *memory.MEASURED, *memory.PREDICTED, "of_formula")


def show_parts(taken: Filters, drawn: pd.DataFrame) -> None:
    """Every kind of memory of the rows that are drawn above; asked for when it is opened."""
    label = "What the peak is made of: inputs, saved for backward, workspace, reserved, beside the formula"
    with st.expander(label, icon=":material/stacks:", key="memory_kinds", on_change="rerun") as opened:
        if not opened.open:
            return
        found = kinds(ask(memory.parts, taken, tuple(drawn["run_id"].unique())), drawn)
        if found.empty:
            st.caption("The source says no kind of memory but what is drawn.")
            return
        _table(found)
        st.caption(
            "Measured: inputs, saved for backward, above inputs, peak, reserved; saved for backward is taken with "
            "forward and backward, whatever the mode. Reserved is what torch's allocator takes from the device, in "
            "blocks, and so what must be free. Measured over formula above 1 is work that the formula does not count, "
            "such as the partial results of a split over keys; small sizes are rounded up to the allocator's blocks."
        )
        messages.download("Download kinds", "memory_kinds", lambda: found, "kinds_csv")


def kinds(found: pd.DataFrame, drawn: pd.DataFrame) -> pd.DataFrame:
    """The kinds of memory of the rows that are drawn, with measured over formula."""
    wanted = set(zip(*(drawn[name] for name in ("run_id", "implementation", "seqlen")), drawn["dtype"], strict=True))
    shapes = set(zip(drawn["shape"], drawn["head_dim"], strict=True))
    head_dims = [text.size(d) if text.missing(d) else str(int(d)) for d in found["head_dim"]]
    keys = zip(*(found[name] for name in ("run_id", "implementation", "seqlen_q")), found["dtype"], strict=True)
    places = zip(found["shape"], head_dims, strict=True)
    kept = found[[key in wanted and place in shapes for key, place in zip(keys, places, strict=True)]]
    return kept.assign(of_formula=kept["peak_memory_mb"] / kept["peak"])


def _table(found: pd.DataFrame) -> None:
    config = {
        name: st.column_config.NumberColumn(
            f"{METRICS[name].label} (MiB)", format="%.2f", help=METRICS[name].description
        )
        for name in memory.MEASURED
    }
    config |= {
        name: st.column_config.NumberColumn(
            label if name == "of_formula" else f"{label} (MiB)", format="%.2f", help=about
        )
        for name, (label, about) in _LABELS.items()
    }
    shown = found[[*_PART_COLUMNS]].dropna(axis="columns", how="all")
    alt = "Kinds of memory, measured and by formula, of every row that is drawn"
    st.dataframe(shown.rename(columns={"seqlen_q": "seqlen"}), hide_index=True, alt=alt, column_config=config)
