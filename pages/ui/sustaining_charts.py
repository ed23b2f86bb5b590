"""What a GPU did while a cell ran on and on: four quantities below each other over the same seconds."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages.ui.charts import EMPTY_COLOUR, SPARE_COLOURS, SYMBOLS
from pages.ui.reporting_charts import MARGIN

LABELS = {
    "sustained_tflops": "TFLOP/s",
    "sustained_clock_mhz": "SM clock (MHz)",
    "sustained_power_w": "power (W)",
    "sustained_temperature_c": "temperature (°C)",
}


def traces(slices: pd.DataFrame, cells: pd.DataFrame) -> go.Figure:
    """A panel a quantity that any of the traces has; `cells` holds the sampled rate and the power limit of each."""
    names = [name for name in LABELS if name in slices and slices[name].notna().any()]
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.04)
    for at, (trace, rows) in enumerate(slices.groupby("trace", sort=True)):
        colour = SPARE_COLOURS[at % len(SPARE_COLOURS)]
        cell = cells[cells["trace"] == trace].iloc[0]
        for place, name in enumerate(names, start=1):
            if rows[name].notna().any():
                figure.add_scatter(
                    x=rows["seconds"],
                    y=rows[name],
                    name=trace,
                    legendgroup=trace,
                    showlegend=place == 1 and slices["trace"].nunique() > 1,  # one is named above the chart
                    mode="lines+markers",
                    line={"color": colour, "width": 1.5},
                    marker={"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 4, "color": colour},
                    hovertemplate=f"%{{x:.1f}} s: %{{y:.4g}} {LABELS[name]}<extra></extra>",
                    row=place,
                    col=1,
                )
        _level(figure, names, "sustained_tflops", cell["cold_tflops"], colour, "dash")
        _level(figure, names, "sustained_power_w", cell["power_limit_w"], EMPTY_COLOUR, "dot")
    for place, name in enumerate(names, start=1):
        figure.update_yaxes(title=LABELS[name], row=place, col=1)
    figure.update_xaxes(title="seconds", rangemode="tozero", row=len(names), col=1)
    panels = 170 * len(names)
    legend = {"orientation": "h", "y": -75 / panels}  # below the title of the axis, however many panels there are
    return figure.update_layout(height=110 + panels, margin=MARGIN, legend=legend, hovermode="closest")


def _level(figure: go.Figure, names: list[str], name: str, value: float, colour: str, dash: str) -> None:
    """A level to compare a panel's curve with; none where it is not known."""
    if name in names and value == value:
        figure.add_hline(y=value, line={"color": colour, "width": 1.5, "dash": dash}, row=names.index(name) + 1, col=1)
