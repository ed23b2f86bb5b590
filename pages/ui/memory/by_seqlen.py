"""Memory by seqlen: the choice of metric and shape, the headline, the lines with formulas, the reductions."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, colours, messages, tables, text, titles
from pages.ui.draw.charts import Chart, Series
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import select
from pages.ui.shell.data import ask
from results import levels
from results.implementations import facts_of
from results.metrics import MEMORY_METRICS, METRICS
from results.query import pages
from results.query.declared import declared, of_rows
from results.slice import Filters, level_in

_EQUAL = 0.005  # a relative difference below this counts as equal
_NAMED = 3  # a headline names up to so many implementations and counts more
_MARKS = [2.0**power for power in range(-12, 26, 4)]  # MiB
COLUMNS = ("implementation", "dtype", "head_dim", "seqlen", "value", "reduction", "status", "note", "source", "run_id")


@dataclass(frozen=True)
class MemoryView:
    """The choices of the page: a metric of one shape."""

    taken: Filters  # the slice, with a mode in which memory was measured
    metric: str
    kept: str  # head_dim, batch and heads, in words

    def title(self, table: pd.DataFrame, dtype: str | None = None) -> ChartTitle:
        """Return the title of a chart or file with these rows."""
        what = f"{METRICS[self.metric].label} by seqlen" + (f", {dtype}" if dtype else "")
        sliced = replace(self.taken, timing=None, head_dim=(), shape=self.kept)
        return titles.of_slice(what, sliced, table["run_id"].unique())


def choose_metric(chosen: Filters) -> tuple[str | None, Filters]:
    """Ask for the metric; return it, and the slice with a mode in which memory was measured (never bwd alone)."""
    found, words = ask(pages.memory_choices, chosen), text.WORDS["memory_metrics"]
    names = [name for name in MEMORY_METRICS if name in set(found.loc[found["numbers"] > 0, "metric"])]
    if not names:
        return None, chosen
    about = "; ".join(f"{words[name]}: {METRICS[name].description}" for name in names)
    metric = select.one_of_several("Memory (MiB)", "metric", names, format_func=words.get, help=about)
    modes = found.loc[found["metric"] == metric, "mode"].tolist()
    wanted = [chosen.mode, *(["fwd_bwd"] if chosen.mode == "bwd" else []), *modes]
    return metric, replace(chosen, mode=next(mode for mode in wanted if mode in modes))


def one_shape(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of one dtype, one head_dim and one batch and head count, and the last two in words."""
    table = table.assign(dtype_name=[cells.dtype_name(dtype) for dtype in table["dtype"]])
    usual = next((name for name in ("bfloat16", "float16") if name in set(table["dtype_name"])), None)
    table, _ = select.rows_of_one(table, "dtype_name", "value", "memory_dtype", "dtype", first=usual)
    table = table.assign(head_dim=[text.size(d) if text.missing(d) else str(int(d)) for d in table["head_dim"]])
    width = {"first": "128"}  # the most common head_dim of models
    table, head_dim = select.rows_of_one(table, "head_dim", "value", "memory_head_dim", "head_dim", **width)
    table, shape = select.rows_of_one(table, "shape", "value", "memory_shape", "Batch and heads")
    return table, f"head_dim {head_dim} · {shape}"


def headline(table: pd.DataFrame, chosen: Filters) -> None:
    """Name the lowest memory at the longest sequence that the baseline fits, and the first failures."""
    compared = table[(table["implementation"] != chosen.baseline) & table["reduction"].notna()]
    parts = []
    if len(compared):
        longest = compared[compared["seqlen"] == compared["seqlen"].max()]
        best = longest.loc[longest["reduction"].idxmax()]
        equal = longest[longest["value"] <= best["value"] * (1 + _EQUAL)]
        names = colours.ordered(equal["implementation"])
        many = len(names) > _NAMED
        who = f"{len(names)} implementations take" if many else f"{', '.join(names)} take{'s' * (len(names) == 1)}"
        parts.append(
            f"{text.plain(who)} {text.mib(best['value'])} at seqlen {text.size(best['seqlen'])}, "
            f"1/{best['reduction']:{'.0f' if best['reduction'] >= 10 else '.2g'}} of {text.plain(chosen.baseline)}"
        )
    failed = table[table["status"] == "oom"].groupby(["implementation", "dtype"], dropna=False)["seqlen"].min()
    parts += [f"{text.plain(n)} is out of memory from {text.size(s)} in {dtype}" for (n, dtype), s in failed.items()]
    if parts:
        st.markdown("## " + "; ".join(parts))


def formulas(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the memory of the rows by formula if the algorithm is known; only peak memory has a formula."""
    rows, said = table.to_dict("records") if metric == "peak_memory_mb" else [], ask(of_rows)
    laws = [facts_of(row["implementation"], said, row["run_id"]).memory for row in rows]
    values = [levels.memory_mb(case_of(row), law, row["mode"]) for row, law in zip(rows, laws, strict=True)]
    places = table[["implementation", "dtype", "seqlen"]].head(len(rows))
    return places.assign(value=pd.Series(values, places.index, dtype=float))


def show_lines(table: pd.DataFrame, predicted: pd.DataFrame, view: MemoryView, capacities: dict[str, float]) -> None:
    """Draw memory by seqlen of one dtype; a second chart would take the browser as long again."""
    palette, label = colours.palette(table["implementation"].unique().tolist()), METRICS[view.metric].label
    y_axis = _axis(label, table["value"].dropna(), [*capacities.values(), *predicted["value"].dropna()])
    chart = memory_lines(table, palette, capacities, predicted, y_axis)
    alt = f"{label} by seqlen, one line for each implementation"
    charts.show(chart, view.title(table, table["dtype_name"].iloc[0]), key="memory", alt=alt)


def caption(view: MemoryView, table: pd.DataFrame) -> None:
    """Explain the lines: the metric, the formula, the capacity."""
    known = " The source does not state the device's memory." if text.missing(table["gpu_memory_mb"].max()) else ""
    badges = messages.source_badges(sorted(set(table["source"])))
    description = METRICS[view.metric].description
    by_formula = view.metric == "peak_memory_mb"
    st.caption(
        f"{badges} {description[:1].upper()}{description[1:]} · {messages.counted(len(table), 'row')}."
        f"{' Dotted: predicted by formula.' * by_formula}{known}",
        help=f"Counted by the formula: {_formula_words(table, view.taken)}." if by_formula else None,
    )


def reduction_table(table: pd.DataFrame, predicted: pd.DataFrame) -> None:
    """Draw memory, reduction and formula of every row."""
    shown = tables.in_words(with_formula(table, predicted)).dropna(axis="columns", how="all")
    config = tables.declared("memory")
    tables.grid(shown, "Memory and reduction of every row", config)


def with_formula(table: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return measured memory and the formula, ready for a table or a download."""
    shown = table[[*COLUMNS]].rename(columns={"value": "memory_mb"}).reset_index(drop=True)
    formula = predicted["value"].reset_index(drop=True) if len(predicted) else pd.Series(index=shown.index, dtype=float)
    shown["head_dim"] = pd.to_numeric(shown["head_dim"], errors="coerce").astype("Int64")
    shown.insert(6, "formula_mb", formula)
    shown.insert(7, "of_formula", shown["memory_mb"] / formula)
    return shown


def case_of(row: dict) -> dict:
    """Return a row as a case for a formula, with None for values that the source does not state."""
    known = {name: None if text.missing(value) else value for name, value in row.items()}
    return known | {"head_dim": int(row["head_dim"]) if row["head_dim"].isdigit() else None}


def memory_lines(
    table: pd.DataFrame, palette: dict[str, str], capacities: dict[str, float], formulas: pd.DataFrame, y_axis: dict
) -> Chart:
    """Return memory by seqlen, both logarithmic: solid lines, dotted formulas, and crosses at the first failures.

    Capacities (MiB by label) are dashed lines; crosses are drawn at the first of them.
    """
    rows = table[["implementation", "seqlen", "value", "status"]].to_dict("records")
    known = formulas[["implementation", "seqlen", "value"]].dropna().to_dict("records")
    predicted = {(row["implementation"], row["seqlen"]): row["value"] for row in known}
    sizes = [*table["seqlen"], *formulas["seqlen"]]
    measured = [row["value"] for row in rows if not text.missing(row["value"])]
    top = next(iter(capacities.values()), max(measured, default=math.nan))

    def hover(row: dict) -> str:
        formula = predicted.get((row["implementation"], row["seqlen"]))
        return text.mib(row["value"]) + (f" (formula {text.mib(formula)})" if formula else "")

    found = charts.lines(rows, "value", palette, hover)
    dotted: dict[str, Any] = {"line": "dot", "width": 1.5, "symbol": "", "legend": False}
    by_formula = charts.lines(known, "value", palette, hover, **dotted)
    found += [replace(line, name=f"{line.name} formula", group=line.name, hover=None) for line in by_formula]
    failed = [mark for name in palette if (mark := _first_oom(rows, name, palette[name], top, predicted))]
    found += [  # names of failures at one length are below each other
        replace(mark, labels=[f"{'&nbsp;<br>' * at}OOM from {text.size(mark.x[0])}"]) for at, mark in enumerate(failed)
    ]
    found += [_capacity(words, value, min(sizes), max(sizes)) for words, value in capacities.items() if sizes]
    return charts.by_size(found, "seqlen", sizes, y_axis, room_for=palette)


def _first_oom(rows: list[dict], name: str, colour: str, top: float, predicted: dict[tuple, float]) -> Series | None:
    failed = sorted(int(row["seqlen"]) for row in rows if row["implementation"] == name and row["status"] == "oom")
    if not failed:
        return None
    formula = predicted.get((name, failed[0]))
    needs = f", needs {text.mib(formula)} by formula" if formula else ""
    said = [f"{name}: out of memory from here{needs}"]
    look: dict[str, Any] = {"symbol": "x", "size": 13, "outline": 1, "legend": False, "beside": "bottom left"}
    return Series(f"{name} OOM", failed[:1], [top], colour, said, group=name, **look)


def _capacity(words: str, value: float, first: int, last: int) -> Series:
    labels = [f"{words} {text.mib(value)}", ""]
    return charts.reference(words, [first, last], [value, value], labels=labels, legend=False)


def _axis(label: str, measured: Iterable[float], others: Iterable[float]) -> dict:
    """Return an axis from half the lowest measured value to four times the highest drawn value."""
    measured = list(measured)
    top = max([*measured, *others, 1e-3])
    bottom = min([top, *measured])
    axis = charts.log_ticks(_MARKS, _round_mib) | charts.titled(label)
    return axis | {"range": [math.log10(bottom) - 0.3, math.log10(top) + 0.6]}


def _round_mib(mark: float) -> str:
    if mark < 1:
        return f"{mark * 1024:g} KiB"
    return f"{mark:g} MiB" if mark < 1024 else f"{mark / 1024:g} GiB"


def _formula_words(table: pd.DataFrame, chosen: Filters) -> str:
    level = level_in(chosen)
    said = ask(declared, level.name)
    formulas = {
        name: levels.memory_formula(facts_of(name, said).memory, level, chosen.mode)
        for name in sorted(set(table["implementation"]))
    }
    same = {of: [name for name in formulas if formulas[name] == of] for of in formulas.values() if of}
    known = [f"{text.plain(', '.join(names))}: {of}" for of, names in same.items()]
    return "; ".join(known) or "none, because the algorithms are not known"
