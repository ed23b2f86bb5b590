"""What the peak is made of: given, kept for the backward, worked in, reserved, each beside the formula."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import charts, messages, text
from pages.ui.memory.by_seqlen import MemoryView
from pages.ui.shell.data import ask
from results.metrics import METRICS
from results.query import memory

_LABELS = {
    "given": ("formula: given", "q, k, v, and with a backward dout"),
    "returned": ("formula: returned", "out, and with a backward the gradients"),
    "matrices": ("formula: attention matrices", "scores and probabilities in memory"),
    "workspace": ("formula: workspace", "logsumexp, row sums, sums in float32, copies in another layout"),
    "peak": ("formula: peak", "all of these"),
    "kv_cache": ("KV cache of one layer", "keys and values kept for all tokens so far; not part of the call"),
    "of_formula": ("measured / formula", "Of the peak"),
}
_PART_COLOURS = {"given": "#0072b2", "returned": "#56b4e9", "matrices": "#d55e00", "workspace": "#009e73"}
_MORE = (
    "Reserved is what torch's allocator takes from the device, in blocks, and so what must be free. Measured over "
    "formula above 1 is memory that the formula does not count, such as partial results of a split over keys. Small "
    "sizes are rounded up to the allocator's blocks."
)
_PART_COLUMNS = ("implementation", "dtype", "seqlen_q", *memory.MEASURED, *memory.PREDICTED, "of_formula")


def show(view: MemoryView, drawn: pd.DataFrame) -> None:
    """Draw every kind of memory of the rows that are drawn above, once it is opened."""
    label = "What the peak is made of: inputs, saved for backward, workspace, reserved, beside the formula"
    with st.expander(label, icon=":material/stacks:", key="memory_kinds", on_change="rerun") as opened:
        if not opened.open:
            return
        found = kinds_of(ask(memory.parts, view.taken, tuple(drawn["run_id"].unique())), drawn)
        if found.empty:
            st.caption("The source states no other kind of memory.")
            return
        _bars(found, view)
        _table(found)
        st.caption("Saved for backward is measured with forward and backward, whatever the mode.", help=_MORE)
        title = replace(view.title(drawn), what="Kinds of memory")
        messages.download_slice("Download kinds", title, view.taken, lambda: found, "kinds_csv")


def kinds_of(found: pd.DataFrame, drawn: pd.DataFrame) -> pd.DataFrame:
    """Return the kinds of memory of the rows that are drawn, with measured over formula."""
    wanted = set(zip(*(drawn[name] for name in ("run_id", "implementation", "seqlen")), drawn["dtype"], strict=True))
    shapes = set(zip(drawn["shape"], drawn["head_dim"], strict=True))
    head_dims = [text.size(d) if text.missing(d) else str(int(d)) for d in found["head_dim"]]
    keys = zip(*(found[name] for name in ("run_id", "implementation", "seqlen_q")), found["dtype"], strict=True)
    places = zip(found["shape"], head_dims, strict=True)
    kept = found[[key in wanted and place in shapes for key, place in zip(keys, places, strict=True)]]
    return kept.assign(of_formula=kept["peak_memory_mb"] / kept["peak"])


def _bars(found: pd.DataFrame, view: MemoryView) -> None:
    """Draw the parts of the formula stacked at the longest sequence, and the measured peak as a mark, by dtype."""
    for dtype, of_dtype in found.groupby("dtype", dropna=False):
        longest = of_dtype[of_dtype["seqlen_q"] == of_dtype["seqlen_q"].max()]
        what = f"Peak memory by part at seqlen {text.size(longest['seqlen_q'].iloc[0])}, {dtype}"
        alt = f"{what}: the formula's parts stacked, the measured peak as a mark"
        charts.show(parts_figure(longest), replace(view.title(longest), what=what), key=f"kinds_{dtype}", alt=alt)


def parts_figure(rows: pd.DataFrame) -> go.Figure:
    """Return a bar an implementation, stacked of the formula's parts in MiB, with the measured peak as a mark."""
    names = charts.ordered(rows["implementation"])[::-1]
    own = rows.drop_duplicates("implementation").set_index("implementation").loc[names]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": own[part].tolist(),
            "name": _LABELS[part][0].removeprefix("formula: "),
            "marker": {"color": colour},
            "hovertemplate": "%{fullData.name}: %{x:,.3r} MiB<extra></extra>",
        }
        for part, colour in _PART_COLOURS.items()
        if own[part].fillna(0).any()
    ]
    measured = {"type": "scatter", "mode": "markers", "y": names, "x": own["peak_memory_mb"].tolist()}
    measured |= {"name": "measured peak", "hovertemplate": "measured peak: %{x:,.3r} MiB<extra></extra>"}
    mark = {"symbol": "line-ns-open", "size": 18, "color": charts.EMPTY_COLOUR, "line": {"width": 3}}
    layout = {
        "barmode": "stack",
        "height": 220 + 26 * len(names),
        "margin": charts.CAMERA_MARGIN,
        "legend": charts.LEGEND | {"traceorder": "normal"},
        "xaxis": {"title": {"text": "MiB"}, "rangemode": "tozero"},
        "yaxis": {"automargin": True},
        "hovermode": "y unified",
    }
    return go.Figure({"data": [*traces, measured | {"marker": mark}], "layout": layout})


def _table(found: pd.DataFrame) -> None:
    config = {
        name: st.column_config.NumberColumn(
            f"{METRICS[name].label} (MiB)", format="%.3g", help=METRICS[name].description
        )
        for name in memory.MEASURED
    }
    config |= {
        name: st.column_config.NumberColumn(
            label if name == "of_formula" else f"{label} (MiB)", format="%.3g", help=about
        )
        for name, (label, about) in _LABELS.items()
    }
    shown = found[[*_PART_COLUMNS]].dropna(axis="columns", how="all")
    alt = "Kinds of memory, measured and by formula, of every row that is drawn"
    config["implementation"] = st.column_config.TextColumn("implementation", pinned=True)
    renamed = shown.rename(columns={"seqlen_q": "seqlen"})
    st.dataframe(renamed, hide_index=True, alt=alt, column_config=config, placeholder="–")
