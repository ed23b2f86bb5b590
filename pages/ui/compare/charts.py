"""Figures of a comparison: each cell's speedup with its interval, and devices beside each other."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from pages.ui.draw import text
from pages.ui.draw.charts import MARGIN, SPARE_COLOURS, SYMBOLS
from results.compare.verdicts import BAND

# Okabe and Ito's, apart for every colour vision; the symbol says the same again
VERDICTS = {
    "SLOWER": ("#d55e00", "triangle-down"),
    "UNCLEAR": ("#8a8f98", "circle-open"),
    "FASTER": ("#0072b2", "triangle-up"),
    "SAME": ("#009e73", "circle"),
}
_NEUTRAL = "#8a8f98"
_TENS = [m * 10.0**power for power in range(-4, 6) for m in (1, 3)]
_TWOS = [2.0**power for power in range(-10, 11)]
_FINE = [0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7]


def speedups(table: pd.DataFrame) -> go.Figure:
    """The speedup of each cell over its latency before, both logarithmic, with its interval, by verdict."""
    figure = go.Figure()
    for verdict, (colour, symbol) in VERDICTS.items():
        rows = table[(table["verdict"] == verdict) & table["speedup"].notna()]
        if rows.empty:
            continue
        figure.add_scatter(
            x=rows["first_ms"],
            y=rows["speedup"],
            name=f"{verdict} {len(rows)}",
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 8},
            error_y={
                "array": (rows["high"] - rows["speedup"]).fillna(0),
                "arrayminus": (rows["speedup"] - rows["low"]).fillna(0),
                "thickness": 1,
                "width": 0,
                "color": colour,
            },
            customdata=[_hover(row) for row in rows.to_dict("records")],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.add_hrect(y0=1 / (1 + BAND), y1=1 + BAND, fillcolor=_NEUTRAL, opacity=0.2, line_width=0)
    figure.update_xaxes(type="log", title="latency of the first (ms)", **_ticks(table["first_ms"], _TENS))
    near = table["speedup"].between(0.6, 1.7).all()
    marks = _ticks(table["speedup"], _FINE if near else _TWOS, "×", also=1.0)
    figure.update_yaxes(type="log", title="speedup", **marks)
    return _laid_out(figure)


def devices(table: pd.DataFrame, column: str, label: str) -> go.Figure:
    """A quantity by seqlen, a line a device."""
    figure = go.Figure()
    for place, (gpu, rows) in enumerate(table.groupby("gpu", sort=True)):
        rows = rows.dropna(subset=[column]).sort_values("seqlen")
        colour = SPARE_COLOURS[place % len(SPARE_COLOURS)]
        figure.add_scatter(
            x=rows["seqlen"],
            y=rows[column],
            name=gpu,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9, "color": colour},
            customdata=[f"{gpu}<br>seqlen {text.size(row['seqlen'])}: {row[column]:.4g}" for _, row in rows.iterrows()],
            hovertemplate="%{customdata}<extra></extra>",
        )
    ticks = sorted(table["seqlen"].dropna().unique())
    figure.update_xaxes(type="log", title="seqlen", tickvals=ticks, ticktext=[text.size(tick) for tick in ticks])
    if column == "latency_ms":
        figure.update_yaxes(title=label, type="log", **_ticks(table[column], _TENS))
    else:
        figure.update_yaxes(title=label, rangemode="tozero")
    return _laid_out(figure)


def _ticks(values: pd.Series, marks: list[float], unit: str = "", also: float | None = None) -> dict[str, list]:
    """The marks from the last below the values, and what else is in sight, to the first above them, and an axis over at
    least two of them."""
    low, high = values.min(), values.max()
    lowest, highest = min(low, also or low), max(high, also or high)
    below = [place for place, mark in enumerate(marks) if mark < lowest] or [0]
    above = [place for place, mark in enumerate(marks) if mark > highest] or [len(marks) - 1]
    shown = marks[below[-1] : above[0] + 1]
    ticks = {"tickvals": shown, "ticktext": [f"{mark:g}{unit}" for mark in shown]}
    alone = {"range": [math.log10(shown[0]), math.log10(shown[-1])]} if low == high else {}
    return ticks | alone


def _hover(row: dict) -> str:
    where = f"{row['implementation']} {row['mode']}<br>seqlen {text.size(row['seqlen'])}, head_dim {row['head_dim']}"
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{where}, {row['dtype']}<br>{row['speedup']:.3f}×{interval} {row['verdict']}"


def _laid_out(figure: go.Figure) -> go.Figure:
    return figure.update_layout(height=400, margin=MARGIN, legend={"orientation": "h", "y": -0.2}, hovermode="closest")
