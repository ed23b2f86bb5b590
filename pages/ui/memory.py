"""The parts of the memory page: which metric and shape, the headline, the lines, the reductions.

Memory by seqlen as a figure: measured, by formula, the device's capacity, where it ends.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, messages, text
from pages.ui.draw import text as words
from pages.ui.draw.charts import EMPTY_COLOUR, MARGIN, SYMBOLS
from pages.ui.filters import filters
from pages.ui.shell.data import ask
from results import capacity
from results.metrics import METRICS
from results.query import pages
from results.query.pages import Filters

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


COLUMNS = ("implementation", "dtype", "head_dim", "seqlen", "value", "reduction", "status", "note", "source", "run_id")


def choose_metric(chosen: Filters) -> tuple[str | None, Filters]:
    """The metric to show, and the slice with a mode in which memory was taken (there is none of bwd alone)."""
    found = ask(pages.memory_choices, chosen)
    if found.empty:
        return None, chosen
    names = [name for name in pages.MEMORY_METRICS if name in set(found.loc[found["numbers"] > 0, "metric"])]
    if not names:
        return None, chosen
    metric = names[0]
    if len(names) > 1:
        labels = ", ".join(f"{name}: {METRICS[name].description}" for name in names)
        metric = st.pills(
            "Metric", names, default=names[0], required=True, key="metric", bind="query-params", help=labels
        )
    modes = found.loc[found["metric"] == metric, "mode"].tolist()
    wanted = [chosen.mode, *(["fwd_bwd"] if chosen.mode == "bwd" else []), *modes]
    return metric, replace(chosen, mode=next(mode for mode in wanted if mode in modes))


def one_shape(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of one head_dim and one batch and head count, and that choice in words."""
    table = table.assign(head_dim=[text.size(d) if text.missing(d) else str(int(d)) for d in table["head_dim"]])
    table, head_dim = _one_of(table, "head_dim", "memory_head_dim", "head_dim")
    table, shape = _one_of(table, "shape", "memory_shape", "Batch and heads")
    return table, f"head_dim {head_dim} · {shape}"


def _one_of(table: pd.DataFrame, column: str, key: str, label: str) -> tuple[pd.DataFrame, str]:
    """The rows of one value, which the page asks for where there are several; the one with most numbers first."""
    counts = table.groupby(column)["value"].count()
    names = sorted(counts.index, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    chosen = max(names, key=lambda name: (counts[name], names.index(name)))
    if len(names) > 1:
        chosen = st.pills(label, names, default=chosen, required=True, key=key, bind="query-params", wrap=True)
    return table[table[column] == chosen], chosen


def headline(table: pd.DataFrame, chosen: Filters) -> None:
    """The largest saving at the longest sequence that the baseline still fits, and where it stops fitting."""
    compared = table[(table["implementation"] != chosen.baseline) & table["reduction"].notna()]
    parts = []
    if len(compared):
        longest = compared[compared["seqlen"] == compared["seqlen"].max()]
        best = longest.loc[longest["reduction"].idxmax()]
        parts.append(
            f"{text.plain(best['implementation'])} takes {text.mib(best['value'])} at seqlen "
            f"{text.size(best['seqlen'])}, "
            f"{text.ratio(best['reduction'])} less than {text.plain(chosen.baseline)}"
        )
    failed = table[table["status"] == "oom"].groupby(["implementation", "dtype"], dropna=False)["seqlen"].min()
    parts += [f"{text.plain(n)} is out of memory from {text.size(s)} in {dtype}" for (n, dtype), s in failed.items()]
    if parts:
        st.markdown("#### " + "; ".join(parts))


def formulas(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The same rows by formula where the algorithm is known; only peak memory has a formula."""
    rows = table.to_dict("records") if metric == "peak_memory_mb" else []
    predicted = [
        {
            "implementation": row["implementation"],
            "dtype": row["dtype"],
            "seqlen": row["seqlen"],
            "value": capacity.predicted_mb(case_of(row), row["implementation"], row["mode"]),
        }
        for row in rows
    ]
    return pd.DataFrame(predicted, columns=["implementation", "dtype", "seqlen", "value"]).astype({"value": float})


def facets(
    table: pd.DataFrame, predicted: pd.DataFrame, palette: dict[str, str], metric: str, capacities: dict[str, float]
) -> None:
    """One chart a dtype."""
    kinds = cells.dtypes(table)
    for start in range(0, len(kinds), 2):
        for column, dtype in zip(st.columns(2 if len(kinds) > 1 else 1), kinds[start : start + 2], strict=False):
            rows, lines = (t[t["dtype"].isna() if dtype is None else t["dtype"] == dtype] for t in (table, predicted))
            figure = memory_lines(rows, palette, capacities, lines, METRICS[metric].label)
            with column:
                st.markdown(f"**{dtype or 'dtype not said'}**")
                alt = f"{METRICS[metric].label} by seqlen, one line an implementation, {dtype or 'dtype not said'}"
                st.plotly_chart(figure, key=f"memory_{dtype}", config=cells.CHART, alt=alt)


def caption(chosen: Filters, metric: str, kept: str, table: pd.DataFrame) -> None:
    """What the lines are: slice, rows, formula, capacity."""
    known = "The source does not say the device's memory." if text.missing(table["gpu_memory_mb"].max()) else ""
    shown = filters.words_of(replace(chosen, shape=kept, head_dim=()))
    rows = f"{METRICS[metric].description} · {messages.counted(len(table), 'row')}, reduction within one run"
    badges = messages.source_badges(sorted(set(table["source"])))
    dotted = f"Dotted: by formula, {_formula_words(table, chosen.mode)}. " if metric == "peak_memory_mb" else ""
    st.caption(f"{badges} {shown} · {rows}. {dotted}{known}")


def reduction_table(table: pd.DataFrame, predicted: pd.DataFrame) -> None:
    """Memory, reduction and formula of every row."""
    shown = with_formula(table, predicted)
    shown["status"] = [text.status(name) for name in shown["status"]]
    shown["note"] = shown["note"].fillna("")
    shown["source"] = [text.sources(name) for name in shown["source"]]
    st.dataframe(
        shown.dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Memory and reduction of every row",
        column_config={
            "memory_mb": st.column_config.NumberColumn("memory (MiB)", format="%.2f"),
            "reduction": st.column_config.NumberColumn("reduction", format="%.2f×"),
            "formula_mb": st.column_config.NumberColumn("formula (MiB)", format="%.2f"),
            "of_formula": st.column_config.NumberColumn("measured / formula", format="%.2f"),
            "note": st.column_config.TextColumn("note", width="large"),
        },
    )


def with_formula(table: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Measured beside formula, ready for a table or a download."""
    shown = table[[*COLUMNS]].rename(columns={"value": "memory_mb"}).reset_index(drop=True)
    formula = predicted["value"].reset_index(drop=True) if len(predicted) else pd.Series(index=shown.index, dtype=float)
    shown["head_dim"] = pd.to_numeric(shown["head_dim"], errors="coerce").astype("Int64")
    shown.insert(6, "formula_mb", formula)
    shown.insert(7, "of_formula", shown["memory_mb"] / formula)
    return shown


def _formula_words(table: pd.DataFrame, mode: str | None) -> str:
    formulas = {name: capacity.formula(name, mode or "") for name in sorted(set(table["implementation"]))}
    same = {of: [name for name in formulas if formulas[name] == of] for of in formulas.values() if of}
    known = [f"{text.plain(', '.join(names))}: {of}" for of, names in same.items()]
    return "; ".join(known) or "none, because the algorithms are not known"


def case_of(row: dict) -> dict:
    """A row as a case for a formula: what the source did not say is None."""
    known = {name: None if text.missing(value) else value for name, value in row.items()}
    return known | {"head_dim": int(row["head_dim"]) if row["head_dim"].isdigit() else None}
