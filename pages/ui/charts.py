"""Figures. Each takes a small table and returns a Plotly figure; no figure decides what is compared with what."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go

from pages.ui import words

# Okabe and Ito's palette, which people with a colour vision deficiency can tell apart, and further tones of it.
COLOURS = {
    "torch_naive": "#7f7f7f",
    "torch_sdpa_auto": "#56b4e9",
    "torch_sdpa_flash": "#0072b2",
    "torch_sdpa_cudnn": "#009e73",
    "torch_sdpa_efficient": "#cc79a7",
    "torch_sdpa_math": "#a6761d",
    "triton_fa2": "#e69f00",
    "triton_fa2_tf32": "#d55e00",
    "gluon_hopper": "#6a3d9a",
    "torch_flex": "#66a61e",
}
SPARE_COLOURS = ("#1b7fb5", "#d95f0e", "#31a354", "#c51b8a", "#8c6bb1", "#7f7f7f", "#e6ab02", "#41b6c4", "#a63603")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon")
FAILED_COLOUR = "#4a4f57"
EMPTY_COLOUR = "#8a8f98"
CLIP = 3  # colours end at 1/8x and 8x; the text shows the real number
UNCLICKABLE = {"itemclick": False, "itemdoubleclick": False}
MARGIN = {"l": 0, "r": 0, "t": 8, "b": 0}


def colours(implementations: list[str]) -> dict[str, str]:
    """A colour for each name: fixed for those of this repository, in order from the spare ones for others."""
    others = sorted(set(implementations) - set(COLOURS))
    return COLOURS | {name: SPARE_COLOURS[i % len(SPARE_COLOURS)] for i, name in enumerate(others)}


def speedup_heatmap(cells: pd.DataFrame, seqlens: list[int], head_dims: list[int]) -> go.Figure:
    """Speedup by seqlen and head_dim: log2 colours around 1x, the number in each cell, failures in words."""
    grid = _Grid(cells, seqlens, head_dims)
    ok = grid.values("speedup", lambda row: max(-CLIP, min(CLIP, math.log2(row["speedup"]))), None)
    figure = go.Figure(
        go.Heatmap(
            z=ok,
            x=grid.x,
            y=grid.y,
            text=grid.values("speedup", lambda row: words.ratio(row["speedup"]), ""),
            texttemplate="%{text}",
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            hoverinfo="skip",
        )
    )
    ticks = {"tickvals": [-3, -2, -1, 0, 1, 2, 3], "ticktext": ["⅛×", "¼×", "½×", "1×", "2×", "4×", "8×"]}
    bar = {"thickness": 10, "outlinewidth": 0, **ticks}
    figure.update_layout(coloraxis={"colorscale": "PuOr", "cmin": -CLIP, "cmax": CLIP, "colorbar": bar})
    return _finish(figure, grid)


def winner_map(
    cells: pd.DataFrame, seqlens: list, head_dims: list, palette: dict[str, str], names: list[str]
) -> go.Figure:
    """The fastest implementation as colour, paler where it is a tie, and its speedup as text."""
    grid = _Grid(cells, seqlens, head_dims)
    keys = [(name, tie) for name in names for tie in (False, True)]
    scale = [_pale(palette[name]) if tie else palette[name] for name, tie in keys] or [EMPTY_COLOUR]
    steps = [(edge / len(scale), colour) for i, colour in enumerate(scale) for edge in (i, i + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=grid.values("winner", lambda row: keys.index((row["winner"], bool(row["ties"]))) + 0.5, None),
            x=grid.x,
            y=grid.y,
            text=grid.values("winner", lambda row: row["label"], ""),
            texttemplate="%{text}",
            colorscale=steps,
            zmin=0,
            zmax=len(scale),
            showscale=False,
            xgap=2,
            ygap=2,
            hoverinfo="skip",
        )
    )
    for name in names:
        marker = {"symbol": "square", "size": 12, "color": palette[name]}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker)
    return _finish(figure, grid, legend=True)


def _pale(colour: str) -> str:
    """Two thirds of the way to white."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)


def memory_lines(
    table: pd.DataFrame, palette: dict[str, str], capacity_mb: float | None, formulas: pd.DataFrame, label: str
) -> go.Figure:
    """Memory by seqlen, both logarithmic: a line an implementation, formulas dotted, first failures as crosses."""
    figure = go.Figure()
    for place, (name, rows) in enumerate(table.groupby("implementation", sort=True)):
        colour, symbol = palette[name], SYMBOLS[place % len(SYMBOLS)]
        measured = rows.dropna(subset=["value"])
        figure.add_scatter(
            x=measured["seqlen"],
            y=measured["value"],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"symbol": symbol, "size": 9, "color": colour},
            customdata=[words.mib(value) for value in measured["value"]],
            hovertemplate=f"{name}<br>seqlen %{{x}}<br>%{{customdata}}<extra></extra>",
        )
        predicted = formulas[formulas["implementation"] == name].dropna(subset=["value"])
        if len(predicted):
            figure.add_scatter(
                x=predicted["seqlen"],
                y=predicted["value"],
                name=f"{name} formula",
                mode="lines",
                line={"color": colour, "width": 1.5, "dash": "dot"},
                showlegend=False,
                customdata=[words.mib(value) for value in predicted["value"]],
                hovertemplate=f"{name} by formula<br>seqlen %{{x}}<br>%{{customdata}}<extra></extra>",
            )
        _mark_first_oom(figure, rows, name, colour, capacity_mb, table["value"].max())
    ticks = sorted({*table["seqlen"].dropna().astype(int), *formulas["seqlen"].dropna().astype(int)})
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[words.size(tick) for tick in ticks], title="seqlen")
    if capacity_mb and ticks:
        figure.add_scatter(
            x=[ticks[0], ticks[-1]],
            y=[capacity_mb, capacity_mb],
            mode="lines+text",
            text=[f"device memory {words.mib(capacity_mb)}", ""],
            textposition="top right",
            line={"dash": "dash", "width": 1.5, "color": EMPTY_COLOUR},
            showlegend=False,
            hoverinfo="skip",
        )
    top = max([capacity_mb or 0, *table["value"].dropna(), *formulas["value"].dropna(), 1e-3])
    bottom = min([top, *table["value"].dropna()])
    marks = [2.0**power for power in range(-12, 26, 4)]
    texts = [_round_mib(mark) for mark in marks]
    span = [math.log10(bottom) - 0.3, math.log10(top) + 0.6]
    figure.update_yaxes(type="log", title=label, tickvals=marks, ticktext=texts, range=span)
    figure.update_layout(height=440, margin=MARGIN, legend={"orientation": "h", "y": -0.2}, hovermode="closest")
    return figure


def _mark_first_oom(
    figure: go.Figure, rows: pd.DataFrame, name: str, colour: str, capacity_mb: float | None, top: float
) -> None:
    failed = rows[rows["status"] == "oom"]
    if failed.empty:
        return
    first = int(failed["seqlen"].min())
    figure.add_scatter(
        x=[first],
        y=[capacity_mb or top],
        name=f"{name} OOM",
        mode="markers+text",
        text=[f"OOM from {words.size(first)}"],
        textposition="bottom left",
        marker={"symbol": "x", "size": 13, "color": colour, "line": {"width": 1}},
        showlegend=False,
        hovertemplate=f"{name}<br>out of memory from seqlen {first} on<extra></extra>",
    )


def _round_mib(mark: float) -> str:
    if mark < 1:
        return f"{mark * 1024:g} KiB"
    return f"{mark:g} MiB" if mark < 1024 else f"{mark / 1024:g} GiB"


class _Grid:
    """Rows of a table laid out by seqlen (down) and head_dim (across), and what to write where there is no number."""

    def __init__(self, cells: pd.DataFrame, seqlens: list[int], head_dims: list[int]) -> None:
        self.seqlens, self.head_dims = seqlens, head_dims
        self.x, self.y = [words.size(n) if n is None else str(n) for n in head_dims], [words.size(n) for n in seqlens]
        self.rows = {(_whole(row["seqlen"]), _whole(row["head_dim"])): row for row in cells.to_dict("records")}

    def values(self, needed: str, value: Callable[[dict], object], otherwise: object) -> list[list]:
        """`value(row)` of each cell that has the needed column, something else elsewhere."""

        def of(row: dict | None) -> object:
            return otherwise if row is None or words.missing(row[needed]) else value(row)

        return [[of(row) for row in line] for line in self.lines()]

    def failures(self) -> tuple[list[list], list[list]]:
        """Where there is no number: 1 for a failure and 0 for nothing measured, and the words."""
        marks, texts = [], []
        for line in self.lines():
            shown = [row is not None and not words.missing(row.get("shown")) for row in line]
            empty = [row is None or words.missing(row["status"]) for row in line]
            marks.append([None if ok else 0 if gap else 1 for ok, gap in zip(shown, empty, strict=True)])
            texts.append(["" if ok else _broken(_failure(row)) for row, ok in zip(line, shown, strict=True)])
        return marks, texts

    def lines(self) -> list[list[dict | None]]:
        """The rows as they lie on the page."""
        return [[self.rows.get((_whole(s), _whole(d))) for d in self.head_dims] for s in self.seqlens]


def _finish(figure: go.Figure, grid: _Grid, *, legend: bool = False) -> go.Figure:
    """Failures below the numbers, and invisible squares above: a heatmap's own cells cannot be selected."""
    marks, texts = grid.failures()
    figure.add_heatmap(
        z=marks,
        x=grid.x,
        y=grid.y,
        text=texts,
        texttemplate="%{text}",
        colorscale=[(0, EMPTY_COLOUR), (1, FAILED_COLOUR)],
        zmin=0,
        zmax=1,
        textfont={"size": 11},
        showscale=False,
        xgap=2,
        ygap=2,
        hoverinfo="skip",
    )
    places = [
        (x, y, row) for y, line in zip(grid.y, grid.lines(), strict=True) for x, row in zip(grid.x, line, strict=True)
    ]
    figure.add_scatter(
        x=[x for x, _, _ in places],
        y=[y for _, y, _ in places],
        mode="markers",
        marker={"size": 34, "symbol": "square", "opacity": 0.001},
        customdata=[
            [row["hover"], _whole(row["seqlen"]), _whole(row["head_dim"])] if row else ["not measured", None, None]
            for _, _, row in places
        ],
        hovertemplate="%{customdata[0]}<extra></extra>",
        showlegend=False,
    )
    figure.update_xaxes(
        type="category", title="head_dim", showgrid=False, fixedrange=True, range=[-0.5, len(grid.x) - 0.5]
    )
    figure.update_yaxes(
        type="category", title="seqlen", showgrid=False, fixedrange=True, range=[len(grid.y) - 0.5, -0.5]
    )
    figure.update_layout(
        height=80 + 40 * len(grid.y) + 34 * legend,
        margin=MARGIN,
        legend={
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "itemclick": False,
            "itemdoubleclick": False,
        },
        dragmode=False,
    )
    return figure


def _failure(row: dict | None) -> str:
    return "not measured" if row is None else row.get("failure") or words.status(row.get("status"))


def _broken(text: str) -> str:
    return text.replace(" ", "<br>")


def _whole(number: object) -> int | None:
    return None if words.missing(number) else int(number)
