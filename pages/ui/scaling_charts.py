"""Lines over seqlen and the roofline; both logarithmic, both with a camera."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from pages.ui import words
from pages.ui.charts import EMPTY_COLOUR, SYMBOLS
from pages.ui.reporting_charts import MARGIN, log_axis
from results.scaling import Quantity, Roof

GUIDES = {
    "latency_ms": {"∝ n": 1, "∝ n²": 2},
    "time_per_token_us": {"constant": 0, "∝ n": 1},
    "memory_per_token_kb": {"constant": 0, "∝ n": 1},
}
LEGEND = {"orientation": "h", "y": -0.2}


def lines(rows: pd.DataFrame, column: str, quantity: Quantity, palette: dict[str, str]) -> go.Figure:
    """A quantity by seqlen, a line an implementation; latencies with p20 to p80."""
    figure = go.Figure()
    drawn = rows[rows[column] > 0]
    for at, (name, own) in enumerate(drawn.groupby("implementation", sort=True)):
        own = own.sort_values("seqlen_q")
        figure.add_scatter(
            x=own["seqlen_q"],
            y=own[column],
            name=name,
            mode="lines+markers",
            line={"color": palette[name], "width": 2},
            marker={"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 9, "color": palette[name]},
            error_y=_spread(own) if column == "latency_ms" else None,
            customdata=[_hover(row, column, quantity) for row in own.to_dict("records")],
            hovertemplate="%{customdata}<extra></extra>",
        )
    _guides(figure, drawn, column)
    ticks = sorted(drawn["seqlen_q"].astype(int).unique())
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[words.size(tick) for tick in ticks], title="seqlen")
    figure.update_yaxes(title=_title(quantity), **log_axis(drawn[column].min(), drawn[column].max()))
    figure.update_layout(height=440, margin=MARGIN, legend=LEGEND, hovermode="closest")
    return figure


def roofline(rows: pd.DataFrame, roofs: Sequence[Roof], palette: dict[str, str]) -> go.Figure:
    """TFLOP/s by operations a byte, a point a case, under the device's roofs."""
    figure = go.Figure()
    drawn = rows[(rows["tflops"] > 0) & (rows["intensity"] > 0)]
    low, high = drawn["intensity"].min() / 2, drawn["intensity"].max() * 2
    _draw_roofs(figure, roofs, low, high)
    for at, (name, own) in enumerate(drawn.groupby("implementation", sort=True)):
        figure.add_scatter(
            x=own["intensity"],
            y=own["tflops"],
            name=name,
            mode="markers",
            marker={"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 8, "color": palette[name], "opacity": 0.85},
            customdata=[
                f"{row['implementation']}<br>seqlen {words.size(row['seqlen_q'])}, head_dim {row['head_dim']:.0f}<br>"
                f"{row['tflops']:.1f} TFLOP/s, {row['gb_per_s']:.0f} GB/s at least"
                for row in own.to_dict("records")
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_xaxes(title="operations a byte (least traffic)", **log_axis(low, high))
    figure.update_yaxes(
        title="TFLOP/s", **log_axis(drawn["tflops"].min(), _highest(roofs, high, drawn["tflops"].max()))
    )
    figure.update_layout(height=520, margin=MARGIN, legend={"orientation": "h", "y": -0.24}, hovermode="closest")
    return figure


def _draw_roofs(figure: go.Figure, roofs: Sequence[Roof], low: float, high: float) -> None:
    """Each roof as a line over these operations a byte; the legend names a kind once."""
    kinds = [roof.name.partition(",")[0] for roof in roofs]  # of measured ones there can be one a run
    for at, (kind, roof) in enumerate(zip(kinds, roofs, strict=True)):
        ridge = 1000 * roof.tflops / roof.gb_per_s if roof.tflops and roof.gb_per_s else None
        xs = [low, *([ridge] if ridge and low < ridge < high else []), high]
        measured = kind.startswith("measured")
        figure.add_scatter(
            x=xs,
            y=[roof.at(x) for x in xs],
            mode="lines",
            name=f"{kind} roof",
            legendgroup=kind,
            showlegend=kind not in kinds[:at],
            line={
                "color": EMPTY_COLOUR,
                "width": 1 if kind.endswith(("TF32", "FP8")) else 2,
                "dash": "dash" if measured else "solid",
            },
            hovertemplate=f"{roof.name}: {_roof_words(roof)}<extra></extra>",
        )


def _spread(rows: pd.DataFrame) -> dict:
    up, down = (rows["p80"] - rows["latency_ms"]).clip(lower=0), (rows["latency_ms"] - rows["p20"]).clip(lower=0)
    return {"type": "data", "array": up.fillna(0), "arrayminus": down.fillna(0), "thickness": 1, "width": 3}


def _hover(row: dict, column: str, quantity: Quantity) -> str:
    lines = [row["implementation"], f"seqlen {int(row['seqlen_q'])}", f"{row[column]:.4g} {quantity.unit}"]
    if column == "latency_ms" and not words.missing(row["p20"]):
        lines.append(f"p20 to p80: {row['p20']:.4g} to {row['p80']:.4g} ms")
    lines.append(f"n = {'not said' if words.missing(row['n']) else int(row['n'])}, {words.sources(row['source'])}")
    return "<br>".join(lines)


def _guides(figure: go.Figure, drawn: pd.DataFrame, column: str) -> None:
    """How a cost would grow: from the cheapest point of the shortest sequence."""
    if drawn["seqlen_q"].nunique() < 2:
        return
    start, end = drawn["seqlen_q"].min(), drawn["seqlen_q"].max()
    base, top = drawn[column].min(), drawn[column].max()
    for name, power in GUIDES.get(column, {}).items():
        last = min(end, start * (top / base) ** (1 / power)) if power else end
        figure.add_scatter(
            x=[start, last],
            y=[base, base * (last / start) ** power],
            mode="lines+text",
            text=["", name],
            textposition="top left",
            line={"dash": "dot", "width": 1, "color": EMPTY_COLOUR},
            showlegend=False,
            hoverinfo="skip",
        )


def _highest(roofs: Sequence[Roof], intensity: float, reached: float) -> float:
    return max([reached, *(bound for roof in roofs if (bound := roof.at(intensity)))])


def _title(quantity: Quantity) -> str:
    return quantity.label if quantity.unit in ("", quantity.label, "%") else f"{quantity.label} ({quantity.unit})"


def _roof_words(roof: Roof) -> str:
    parts = [f"{roof.tflops:.0f} TFLOP/s"] if roof.tflops else []
    return ", ".join(parts + ([f"{roof.gb_per_s:.0f} GB/s"] if roof.gb_per_s else []))
