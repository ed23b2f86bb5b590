"""Two implementations of one run as a map: the speedup of each shape, with the mark of its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.compare.verdicts import BY_CLOCK, NOISY
from pages.ui.draw import maps, text
from pages.ui.filters.select import rows_of_one
from results.levels import level_of

MARKS = {"FASTER": "▲", "SLOWER": "▼", "SAME": "=", NOISY: "?", BY_CLOCK: "?", "LOST": "", "GAINED": ""}
LEGEND = "▲ faster, ▼ slower, = equal within 2 %, ? undecided."


def draw(table: pd.DataFrame, first: str, second: str) -> None:
    """Draw the map of one mode, mask and shape of a comparison's cells; ask for each where there are several."""
    named = table.assign(
        mode=[text.MODE_WORDS.get(mode, mode) or "not stated" for mode in table["mode"]],
        batch_heads=table["shape"],
    )
    with st.container(horizontal=True):
        for column, label in (("level", "Level"), ("mode", "Mode"), ("mask", "Mask")):
            named, _ = rows_of_one(named, column, "speedup", f"versus_{column}", label)
        level = level_of(str(named["level"].iloc[0]))
        if level.rows.column != "batch":
            named, _ = rows_of_one(named, "batch_heads", "speedup", "versus_shape", "Batch and heads")
    rows = _cells(named, level.rows.field)
    look = maps.speedups(rows)
    marked = replace(look, text=lambda row: f"{look.text(row)} {MARKS[row['verdict']]}".strip())
    alt = f"Speedup of {second} over {first} by {level.columns.label} and {level.rows.label}, with verdicts"
    maps.show(level, rows, marked, "versus_map", alt, selectable=False)
    st.caption(f"Speedup of {text.plain(second)} over {text.plain(first)}. {LEGEND}")


def _cells(table: pd.DataFrame, rows_field: str) -> Sequence[dict]:
    """Return what a map draws of each cell; of a place that holds several shapes the first."""
    places = table.drop_duplicates(["dtype", "seqlen", rows_field])
    return [row | _drawn(row) for row in places.to_dict("records")]


def _drawn(row: dict) -> dict[str, object]:
    known = not text.missing(row["speedup"])
    failed = "not measured" if known else "no number"
    interval = "" if text.missing(row["low"]) else f" (90 % interval {row['low']:.3f} to {row['high']:.3f})"
    ratio = f"{text.ratio(row['speedup'])}{interval}<br>" if known else ""
    return {
        "shown": row["speedup"] if known else None,
        "status": "ok" if known else row["verdict"],
        "failure": failed,
        "hover": f"{ratio}{row['verdict']}: {row['why']}",
    }
