"""Memory by seqlen as a figure: measured, by formula, the device's capacity, where it ends."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from pages.ui import words
from pages.ui.charts import EMPTY_COLOUR, MARGIN, SYMBOLS

_MARKS = [2.0**power for power in range(-12, 26, 4)]  # MiB


def memory_lines(
    table: pd.DataFrame,
    palette: dict[str, str],
    capacities: dict[str, float],
    formulas: pd.DataFrame,
    label: str,
) -> go.Figure:
    """Memory by seqlen, both logarithmic: a line an implementation, formulas dotted, first failures as crosses.

    Capacities (MiB by what is written beside them) are dashed lines; failures stand at the first of them.
    """
    top = next(iter(capacities.values()), table["value"].max())
    traces = []
    for place, (name, rows) in enumerate(table.groupby("implementation", sort=True)):
        colour, symbol = palette[name], SYMBOLS[place % len(SYMBOLS)]
        predicted = formulas[formulas["implementation"] == name].dropna(subset=["value"])
        traces.append(_measured(rows.dropna(subset=["value"]), name, colour, symbol))
        traces += [_predicted(predicted, name, colour)] if len(predicted) else []
        traces += _first_oom(rows, name, colour, top)
    ticks = sorted({*table["seqlen"].dropna().astype(int), *formulas["seqlen"].dropna().astype(int)})
    traces += [_capacity(text, value, ticks) for text, value in capacities.items() if ticks]
    return go.Figure({"data": traces, "layout": _layout(table, formulas, capacities, ticks, label)})


def _measured(rows: pd.DataFrame, name: str, colour: str, symbol: str) -> dict:
    return _line(rows, name, f"{name}<br>seqlen %{{x}}<br>%{{customdata}}<extra></extra>") | {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": symbol, "size": 9, "color": colour},
    }


def _predicted(rows: pd.DataFrame, name: str, colour: str) -> dict:
    hover = f"{name} by formula<br>seqlen %{{x}}<br>%{{customdata}}<extra></extra>"
    return _line(rows, f"{name} formula", hover) | {
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "showlegend": False,
    }


def _line(rows: pd.DataFrame, name: str, hover: str) -> dict:
    values = rows["value"].tolist()
    return {
        "type": "scatter",
        "x": rows["seqlen"].tolist(),
        "y": values,
        "name": name,
        "customdata": [words.mib(value) for value in values],
        "hovertemplate": hover,
    }


def _first_oom(rows: pd.DataFrame, name: str, colour: str, top: float) -> list[dict]:
    failed = rows[rows["status"] == "oom"]
    if failed.empty:
        return []
    first = int(failed["seqlen"].min())
    mark = {
        "type": "scatter",
        "x": [first],
        "y": [top],
        "name": f"{name} OOM",
        "mode": "markers+text",
        "text": [f"OOM from {words.size(first)}"],
        "textposition": "bottom left",
        "marker": {"symbol": "x", "size": 13, "color": colour, "line": {"width": 1}},
        "showlegend": False,
        "hovertemplate": f"{name}<br>out of memory from seqlen {first} on<extra></extra>",
    }
    return [mark]


def _capacity(text: str, value: float, ticks: list[int]) -> dict:
    return {
        "type": "scatter",
        "x": [ticks[0], ticks[-1]],
        "y": [value, value],
        "mode": "lines+text",
        "text": [f"{text} {words.mib(value)}", ""],
        "textposition": "top right",
        "line": {"dash": "dash", "width": 1.5, "color": EMPTY_COLOUR},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _layout(
    table: pd.DataFrame, formulas: pd.DataFrame, capacities: dict[str, float], ticks: list[int], label: str
) -> dict:
    top = max([*capacities.values(), *table["value"].dropna(), *formulas["value"].dropna(), 1e-3])
    bottom = min([top, *table["value"].dropna()])
    x = {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [words.size(tick) for tick in ticks],
        "title": {"text": "seqlen"},
    }
    span = [math.log10(bottom) - 0.3, math.log10(top) + 0.6]
    y = {"type": "log", "title": {"text": label}, "range": span}
    y |= {"tickvals": _MARKS, "ticktext": [_round_mib(mark) for mark in _MARKS]}
    legend = {"orientation": "h", "y": -0.2}
    return {"xaxis": x, "yaxis": y, "height": 440, "margin": MARGIN, "legend": legend, "hovermode": "closest"}


def _round_mib(mark: float) -> str:
    if mark < 1:
        return f"{mark * 1024:g} KiB"
    return f"{mark:g} MiB" if mark < 1024 else f"{mark / 1024:g} GiB"
