"""The parts of the peak: inputs, memory kept for the backward, workspace and reserved memory, with the formula."""

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.charts import Chart, Series
from pages.ui.memory.by_seqlen import MemoryView
from pages.ui.shell.data import ask
from results.metrics import METRICS
from results.query import memory

_LABELS = text.WORDS["memory_parts"]
_PART_COLOURS = {"given": "#0072b2", "returned": "#56b4e9", "matrices": "#d55e00", "workspace": "#009e73"}
_mib = "{:,.3g} MiB".format
_PART_COLUMNS = ("implementation", "dtype", "seqlen_q", *memory.MEASURED, *memory.PREDICTED, "of_formula")


def show(view: MemoryView, drawn: pd.DataFrame) -> None:
    """Draw every kind of memory of the rows that are drawn above, once it is opened."""
    label = "What the peak is made of: inputs, saved for backward, workspace, reserved, and the formula"
    messages.folded(label, "memory_kinds", lambda: _kinds(view, drawn), ":material/stacks:")


def _kinds(view: MemoryView, drawn: pd.DataFrame) -> None:
    found = kinds_of(ask(memory.parts, view.taken, tuple(drawn["run_id"].unique())), drawn)
    if found.empty:
        st.caption("The source states no other kind of memory.")
        return
    _bars(found, view)
    _table(found)
    messages.say("memory_kinds")
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
    """Draw the parts of the formula stacked at the longest sequence, and the measured peak as a mark."""
    longest = found[found["seqlen_q"] == found["seqlen_q"].max()]
    what = f"Peak memory by part at seqlen {text.size(longest['seqlen_q'].iloc[0])}, {longest['dtype'].iloc[0]}"
    alt = f"{what}: the formula's parts stacked, the measured peak as a mark"
    charts.show(parts_chart(longest), replace(view.title(longest), what=what), key="kinds", alt=alt)


def parts_chart(rows: pd.DataFrame) -> Chart:
    """Return a bar for each implementation, stacked from the formula's parts, with the measured peak as a mark."""
    names = colours.ordered(rows["implementation"])[::-1]
    own = rows.drop_duplicates("implementation").set_index("implementation").loc[names]
    found = []
    for part, colour in _PART_COLOURS.items():
        if own[part].fillna(0).any():
            name = _LABELS[part][0].removeprefix("formula: ")
            said = [f"{name}: {_mib(value)}" for value in own[part]]
            found.append(Series(name, own[part], names, colour, said, bars="h"))
    peaks = own["peak_memory_mb"]
    said = [f"measured peak: {_mib(value)}" for value in peaks]
    look: dict[str, Any] = {"symbol": "line-ns-open", "size": 18, "outline": 3}
    found.append(Series("measured peak", peaks, names, colours.EMPTY_COLOUR, said, **look))
    x = charts.titled("MiB") | {"rangemode": "tozero"}
    return Chart(found, x, {"automargin": True}, 220 + 26 * len(names), "y unified", stacked=True)


def _table(found: pd.DataFrame) -> None:
    config = {
        name: tables.number(f"{METRICS[name].label} (MiB)", help=METRICS[name].description) for name in memory.MEASURED
    }
    config |= {
        name: tables.number(label if name == "of_formula" else f"{label} (MiB)", help=about)
        for name, (label, about) in _LABELS.items()
    }
    config["implementation"] = tables.words("implementation", pinned=True)
    shown = found[[*_PART_COLUMNS]].dropna(axis="columns", how="all").rename(columns={"seqlen_q": "seqlen"})
    tables.grid(shown, "Kinds of memory, measured and by formula, of every drawn row", config)
