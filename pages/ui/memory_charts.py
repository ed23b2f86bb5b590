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
    found, predicted = _by_implementation(table, ("status",)), _by_implementation(formulas)
    ticks = sorted({int(row["seqlen"]) for rows in (*found.values(), *predicted.values()) for row in rows})
    measured = {name: [row for row in rows if not words.missing(row["value"])] for name, rows in found.items()}
    values = [row["value"] for rows in measured.values() for row in rows]
    top = next(iter(capacities.values()), max(values, default=math.nan))
    traces = []
    for place, (name, rows) in enumerate(found.items()):
        colour, symbol = palette[name], SYMBOLS[place % len(SYMBOLS)]
        known = [row for row in predicted.get(name, ()) if not words.missing(row["value"])]
        traces.append(_measured(measured[name], name, colour, symbol))
        traces += [_predicted(known, name, colour)] if known else []
        traces += _first_oom(rows, name, colour, top)
    traces += [_capacity(text, value, ticks) for text, value in capacities.items() if ticks]
    drawn = [row["value"] for rows in predicted.values() for row in rows if not words.missing(row["value"])]
    return go.Figure({"data": traces, "layout": _layout(values, [*capacities.values(), *drawn], ticks, label)})


def _by_implementation(table: pd.DataFrame, more: tuple[str, ...] = ()) -> dict[str, list[dict]]:
    """The rows of each implementation, by name."""
    found: dict[str, list[dict]] = {}
    for row in table[["implementation", "seqlen", "value", *more]].to_dict("records"):
        found.setdefault(row["implementation"], []).append(row)
    return dict(sorted(found.items()))


def _measured(rows: list[dict], name: str, colour: str, symbol: str) -> dict:
    return _line(rows, name, f"{name}<br>seqlen %{{x}}<br>%{{customdata}}<extra></extra>") | {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": symbol, "size": 9, "color": colour},
    }


def _predicted(rows: list[dict], name: str, colour: str) -> dict:
    hover = f"{name} by formula<br>seqlen %{{x}}<br>%{{customdata}}<extra></extra>"
    return _line(rows, f"{name} formula", hover) | {
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "showlegend": False,
    }


def _line(rows: list[dict], name: str, hover: str) -> dict:
    values = [row["value"] for row in rows]
    return {
        "type": "scatter",
        "x": [row["seqlen"] for row in rows],
        "y": values,
        "name": name,
        "customdata": [words.mib(value) for value in values],
        "hovertemplate": hover,
    }


def _first_oom(rows: list[dict], name: str, colour: str, top: float) -> list[dict]:
    failed = [int(row["seqlen"]) for row in rows if row["status"] == "oom"]
    if not failed:
        return []
    first = min(failed)
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


def _layout(measured: list[float], others: list[float], ticks: list[int], label: str) -> dict:
    top = max([*measured, *others, 1e-3])
    bottom = min([top, *measured])
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
