"""What the peak is made of: given, kept for the backward, worked in, reserved, each beside the formula."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.shell.data import ask
from results.metrics import METRICS
from results.query import memory
from results.slice import Filters

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


def show(taken: Filters, drawn: pd.DataFrame) -> None:
    """Draw every kind of memory of the rows that are drawn above, once it is opened."""
    label = "What the peak is made of: inputs, saved for backward, workspace, reserved, beside the formula"
    with st.expander(label, icon=":material/stacks:", key="memory_kinds", on_change="rerun") as opened:
        if not opened.open:
            return
        found = kinds_of(ask(memory.parts, taken, tuple(drawn["run_id"].unique())), drawn)
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


def kinds_of(found: pd.DataFrame, drawn: pd.DataFrame) -> pd.DataFrame:
    """Return the kinds of memory of the rows that are drawn, with measured over formula."""
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
