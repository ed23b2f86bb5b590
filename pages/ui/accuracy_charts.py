"""Figures of errors against float64; the axis of errors is logarithmic."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from pages.ui import words
from pages.ui.charts import MARGIN, SYMBOLS
from results.accuracy import NAIVE, NORMAL
from results.derive import geometric_mean

_REFERENCE = "#8a8f98"
_WIDTH = 0.8  # of the room of a kind of inputs that its marks take
_TWOS = [2.0**power for power in range(-8, 9)]


def frontier(summary: pd.DataFrame, palette: dict[str, str], label: str) -> go.Figure:
    """A mark an implementation: speedup across, error up; the frontier is filled and joined by steps."""
    figure = go.Figure()
    known = summary[summary["speedup"].notna() & (summary["error"] > 0)]
    front = known[known["frontier"]].sort_values("speedup")
    figure.add_scatter(
        x=front["speedup"],
        y=front["error"],
        mode="lines",
        line={"shape": "vh", "color": _REFERENCE, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    for row in known.sort_values("implementation").to_dict("records"):
        name, symbol = row["implementation"], _symbol(row["implementation"], palette)
        figure.add_scatter(
            x=[row["speedup"]],
            y=[row["error"]],
            name=name,
            mode="markers",
            marker={
                "symbol": symbol if row["frontier"] else f"{symbol}-open",
                "size": 12,
                "color": palette[name],
                "line": {"width": 2},
            },
            customdata=[f"{name}<br>{words.ratio(row['speedup'])}, error {row['error']:.3g}<br>{row['cases']} cases"],
            hovertemplate="%{customdata}<extra></extra>",
        )
    naive = summary.loc[summary["implementation"] == NAIVE, "error"]
    if len(naive):
        figure.add_hline(y=float(naive.iloc[0]), line={"dash": "dash", "width": 1.5, "color": _REFERENCE})
    figure.update_xaxes(type="log", title="speedup", tickvals=_TWOS, ticktext=[f"{mark:g}×" for mark in _TWOS])
    return _finish(figure, label, summary["error"])


def by_seqlen(table: pd.DataFrame, palette: dict[str, str], label: str) -> go.Figure:
    """The geometric mean of the errors at each seqlen, a line an implementation; torch_naive's is dashed."""
    figure = go.Figure()
    means = table[table["error"] > 0].groupby(["implementation", "seqlen"])["error"].agg(geometric_mean).reset_index()
    for name, rows in means.groupby("implementation", sort=True):
        figure.add_scatter(
            x=rows["seqlen"],
            y=rows["error"],
            name=name,
            mode="lines+markers",
            line={"color": palette[name], "width": 2, "dash": "dash" if name == NAIVE else "solid"},
            marker={"symbol": _symbol(name, palette), "size": 8, "color": palette[name]},
            customdata=[f"{name}<br>seqlen {words.size(row.seqlen)}: {row.error:.3g}" for row in rows.itertuples()],
            hovertemplate="%{customdata}<extra></extra>",
        )
    ticks = sorted(means["seqlen"].unique())
    figure.update_xaxes(type="log", title="seqlen", tickvals=ticks, ticktext=[words.size(tick) for tick in ticks])
    return _finish(figure, label, means["error"])


def by_inputs(table: pd.DataFrame, palette: dict[str, str], label: str) -> go.Figure:
    """The geometric mean of the errors on each kind of inputs, a mark an implementation, side by side; torch_naive's is
    open."""
    figure = go.Figure()
    means = table[table["error"] > 0].groupby(["implementation", "inputs"])["error"].agg(geometric_mean).reset_index()
    kinds = sorted(means["inputs"].unique(), key=lambda kind: (kind != NORMAL, kind))
    names = sorted(means["implementation"].unique())
    for at, (name, rows) in enumerate(means.groupby("implementation", sort=True)):
        symbol = _symbol(name, palette)
        aside = _WIDTH * ((at + 0.5) / len(names) - 0.5)
        figure.add_scatter(
            x=[kinds.index(kind) + aside for kind in rows["inputs"]],
            y=rows["error"],
            name=name,
            mode="markers",
            marker={
                "symbol": f"{symbol}-open" if name == NAIVE else symbol,
                "size": 11,
                "color": palette[name],
                "line": {"width": 2},
            },
            customdata=[f"{name}<br>{row.inputs} inputs: {row.error:.3g}" for row in rows.itertuples()],
            hovertemplate="%{customdata}<extra></extra>",
        )
    for between in range(1, len(kinds)):
        figure.add_vline(x=between - 0.5, line={"color": _REFERENCE, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="inputs", tickvals=[*range(len(kinds))], ticktext=kinds, range=[-0.5, len(kinds) - 0.5])
    return _finish(figure, label, means["error"])


def _finish(figure: go.Figure, label: str, errors: pd.Series) -> go.Figure:
    figure.update_yaxes(type="log", title=label, **_ticks(errors[errors > 0]))
    return figure.update_layout(height=420, margin=MARGIN, legend={"orientation": "h", "y": -0.2}, hovermode="closest")


def _symbol(name: str, palette: dict[str, str]) -> str:
    """The same in every chart of the page."""
    return SYMBOLS[list(palette).index(name) % len(SYMBOLS)]


def _ticks(errors: pd.Series) -> dict[str, list]:
    """The marks that the errors reach and one more on either side: powers of ten, or steps between if those are few."""
    low, high = errors.min(), errors.max()
    digits = (1,) if high > 100 * low else (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 7)
    marks = [digit * 10.0**power for power in range(-17, 4) for digit in digits]
    shown = [*[mark for mark in marks if mark < low][-1:], *[m for m in marks if low <= m <= high]]
    shown += [mark for mark in marks if mark > high][:1]
    ticks = {"tickvals": shown, "ticktext": [f"{mark:.1e}".replace(".0e", "e") for mark in shown]}
    narrow = len([mark for mark in shown if low <= mark <= high]) < 2  # then the axis itself must reach two marks
    return ticks | ({"range": [math.log10(shown[0]), math.log10(shown[-1])]} if narrow else {})
