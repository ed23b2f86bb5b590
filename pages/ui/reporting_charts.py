"""The chart of a report beside a run."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from pages.ui.charts import EMPTY_COLOUR, SPARE_COLOURS, SYMBOLS
from results.metrics import Metric

PNG = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [["toImage"]]}
MARGIN = {"l": 0, "r": 0, "t": 32, "b": 0}  # room for the camera


def png(name: str) -> dict:
    """A chart's only button: its camera, which writes a PNG in the browser."""
    return PNG | {"toImageButtonOptions": {"format": "png", "scale": 2, "filename": name}}


def own_against_printed(pairs: pd.DataFrame, metric: Metric) -> go.Figure:
    """Each cell of a report as a point, printed across and own up, both logarithmic; on the line they agree."""
    figure = go.Figure()
    names = [name for name in pairs.columns if name not in ("column", "metric", "printed", "own", "own / printed")]
    for at, (column, rows) in enumerate(pairs.groupby("column", sort=False)):
        what = [
            ", ".join(str(row[name]) for name in names if row[name] == row[name]) for row in rows.to_dict("records")
        ]
        figure.add_scatter(
            x=rows["printed"],
            y=rows["own"],
            name=column,
            mode="markers",
            marker={
                "symbol": SYMBOLS[at % len(SYMBOLS)],
                "size": 8,
                "color": SPARE_COLOURS[at % len(SPARE_COLOURS)],
                "line": {"width": 0.5, "color": "white"},
            },
            customdata=what,
            hovertemplate="%{customdata}<br>printed %{x:.4g}, own %{y:.4g}<extra>" + column + "</extra>",
        )
    low, high = (float(getattr(pairs[["printed", "own"]], end)().agg(end)) for end in ("min", "max"))
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"dash": "dash", "width": 1.5, "color": EMPTY_COLOUR},
        name="the same",
        hoverinfo="skip",
    )
    unit = f" ({metric.unit})" if metric.unit else ""
    axis = log_axis(low, high)
    figure.update_xaxes(title=f"{metric.label} as printed{unit}", automargin=True, **axis)
    figure.update_yaxes(title=f"{metric.label} of the own run{unit}", automargin=True, **axis)
    figure.update_layout(height=460, margin=MARGIN, legend={"orientation": "h", "y": -0.22})
    return figure


def log_axis(low: float, high: float) -> dict:
    """A logarithmic axis with whole numbers at its ticks: 1, 2 and 5 of each decade, or the decades alone if many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
