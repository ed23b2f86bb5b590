"""Two implementations of one run as a map: the speedup of each shape, with the mark of its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.compare.verdicts import BY_CLOCK, NOISY
from pages.ui.draw import cells, charts, heatmaps, maps, text
from pages.ui.draw.heatmaps import CellGrid
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import chips
from results.levels import Level, level_of

MARKS = {"FASTER": "▲", "SLOWER": "▼", "SAME": "=", NOISY: "?", BY_CLOCK: "?", "LOST": "", "GAINED": ""}
_CHOICES = (("level", "Level", ("op",)), ("mode", "Mode", chips.MODES), ("mask", "Mask", ("causal", "full")))
LEGEND = "▲ faster, ▼ slower, = equal within 2 %, ? undecided."


def draw(table: pd.DataFrame, first: str, second: str, title: ChartTitle) -> None:
    """Draw the map of one mode, mask and shape of a comparison's cells; ask for each where there are several."""
    with st.container(horizontal=True):
        for column, label, order in _CHOICES:
            table = _of_one(table, column, label, order)
    level = level_of(str(table["level"].iloc[0]))
    if table.duplicated(["dtype", "seqlen", level.rows.field]).any():  # a place on the map holds several shapes
        table = _of_one(table, "shape", "Batch and heads", ())
    rows = _cells(table, level.rows.field)
    alt = f"Speedup of {second} over {first} by {level.columns.label} and {level.rows.label}, with verdicts"
    maps.show(level, rows, maps.speedups(rows, first), "versus_map", alt, selectable=False)
    st.caption(f"Speedup of {text.plain(second)} over {text.plain(first)}. {LEGEND}")
    about = [text.MODE_WORDS.get(table["mode"].iloc[0], ""), f"{table['mask'].iloc[0]} mask", *title.about]
    _pictures(
        level, rows, replace(title, what=f"Speedup of {second} over {first}", about=tuple(filter(None, about))), first
    )


def _pictures(level: Level, rows: Sequence[dict], title: ChartTitle, first: str) -> None:
    """Draw the map as figures that can be saved, once they are asked for."""
    with st.expander("Picture", icon=":material/image:", key="versus_picture", on_change="rerun") as opened:
        if opened.open:
            for dtype, name, of_dtype in cells.by_dtype(rows):
                titled = replace(title, about=(name, *title.about))
                figure = heatmaps.titled(heatmaps.speedup_heatmap(CellGrid(level, of_dtype, rows), first), titled)
                config = charts.camera(titled.file_name)
                st.plotly_chart(figure, key=f"versus_picture_{dtype}", config=config, alt=titled.what)
            st.caption("The map as a figure. The camera saves a PNG.")


def _of_one(table: pd.DataFrame, column: str, label: str, order: Sequence[str]) -> pd.DataFrame:
    """Return the rows of one value of a column; ask for it where there are several, the first of `order` first."""
    values = table[column].fillna("not stated").astype(str)
    names = sorted(values.unique(), key=lambda name: (order.index(name) if name in order else len(order), name))
    chosen = names[0]
    if len(names) > 1:
        words = {name: text.MODE_WORDS.get(name, name) for name in names}
        chosen = st.pills(
            label,
            names,
            default=chosen,
            required=True,
            key=f"versus_{column}",
            bind="query-params",
            format_func=words.get,
        )
    return table[values == chosen]


def _cells(table: pd.DataFrame, rows_field: str) -> Sequence[dict]:
    """Return what a map draws of each cell."""
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
        "mark": cells.DOUBT if row["verdict"] in (NOISY, BY_CLOCK) else None,
        "status": "ok" if known else row["verdict"],
        "failure": failed,
        "hover": f"{ratio}{row['verdict']}: {row['why']}",
    }
