"""Two implementations of one run as a map: the speedup of each shape with the mark of its verdict."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.compare.verdicts import UNCLEAR
from pages.ui.draw import cells, maps, text
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import chips, select
from results.levels import level_of

MARKS = {"FASTER": "▲", "SLOWER": "▼", "SAME": "=", "LOST": "", "GAINED": ""} | dict.fromkeys(UNCLEAR, "?")
_CHOICES = (("level", "Level", ("op",)), ("mode", "Mode", chips.MODES), ("mask", "Mask", ("causal", "full")))
LEGEND = "▲ faster, ▼ slower, = equal within 2 %, ? undecided."


def draw(table: pd.DataFrame, first: str, second: str, title: ChartTitle) -> None:
    """Ask for one mode, mask and shape of a comparison; draw their map."""
    with st.container(horizontal=True):
        for column, label, order in _CHOICES:
            table = _of_one(table, column, label, order)
    level = level_of(str(table["level"].iloc[0]))
    if table.duplicated(["dtype", "seqlen", level.rows.field]).any():  # several shapes would share a place on the map
        table = _of_one(table, "shape", "Batch and heads", ())
    rows = _cells(table, level.rows.field)
    about = [text.MODE_WORDS.get(table["mode"].iloc[0], ""), f"{table['mask'].iloc[0]} mask", *title.about]
    what = f"Speedup of {second} over {first}"
    title = replace(title, what=what, about=tuple(filter(None, about)))
    alt = f"{what} by {level.columns.label} and {level.rows.label}, with verdicts"
    maps.show(level, rows, maps.speedups(rows, first), "versus_map", alt, title=title)
    st.caption(f"Speedup of {text.plain(second)} over {text.plain(first)}. {LEGEND}")


def _of_one(table: pd.DataFrame, column: str, label: str, order: Sequence[str]) -> pd.DataFrame:
    """Return the rows of one value of a column; ask for it if there are several, in the given order."""
    values = table[column].fillna("not stated").astype(str)
    names = sorted(values.unique(), key=lambda name: (order.index(name) if name in order else len(order), name))
    words = {name: text.MODE_WORDS.get(name, name) for name in names}
    chosen = select.one_of_several(label, f"versus_{column}", names, format_func=words.get)
    return table[values == chosen]


def _cells(table: pd.DataFrame, rows_field: str) -> Sequence[dict]:
    """Return the cells of the map."""
    places = table.drop_duplicates(["dtype", "seqlen", rows_field])
    return [row | _drawn(row) for row in places.to_dict("records")]


def _drawn(row: dict) -> dict[str, object]:
    known = not text.missing(row["speedup"])
    failed = "not measured" if known else "no number"
    interval = "" if text.missing(row["low"]) else f" (90 % interval {row['low']:.3f} to {row['high']:.3f})"
    ratio = f"{text.ratio(row['speedup'])}{interval}<br>" if known else ""
    return {
        "shown": row["speedup"] if known else None,
        "label": f"{text.ratio(row['speedup'])} {MARKS[row['verdict']]}" if known else "",
        "mark": cells.DOUBT if row["verdict"] in UNCLEAR else None,
        "status": "ok" if known else row["verdict"],
        "failure": failed,
        "hover": f"{ratio}{row['verdict']}: {row['why']}",
    }
