"""The parts of the memory page: which metric and shape, the headline, the lines, the reductions."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui import cells, filters, memory_charts, messages, words
from pages.ui.data import ask
from results import capacity, queries
from results.metrics import METRICS
from results.queries import Filters

COLUMNS = ("implementation", "dtype", "head_dim", "seqlen", "value", "reduction", "status", "note", "source", "run_id")


def choose_metric(chosen: Filters) -> tuple[str | None, Filters]:
    """The metric to show, and the slice with a mode in which memory was taken (there is none of bwd alone)."""
    found = ask(queries.memory_choices, chosen)
    if found.empty:
        return None, chosen
    names = [name for name in queries.MEMORY_METRICS if name in set(found.loc[found["numbers"] > 0, "metric"])]
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
    table = table.assign(head_dim=[words.size(d) if words.missing(d) else str(int(d)) for d in table["head_dim"]])
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
            f"{words.plain(best['implementation'])} takes {words.mib(best['value'])} at seqlen "
            f"{words.size(best['seqlen'])}, "
            f"{words.ratio(best['reduction'])} less than {words.plain(chosen.baseline)}"
        )
    failed = table[table["status"] == "oom"].groupby(["implementation", "dtype"], dropna=False)["seqlen"].min()
    parts += [f"{words.plain(n)} is out of memory from {words.size(s)} in {dtype}" for (n, dtype), s in failed.items()]
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
            figure = memory_charts.memory_lines(rows, palette, capacities, lines, METRICS[metric].label)
            with column:
                st.markdown(f"**{dtype or 'dtype not said'}**")
                alt = f"{METRICS[metric].label} by seqlen, one line an implementation, {dtype or 'dtype not said'}"
                st.plotly_chart(figure, key=f"memory_{dtype}", config=cells.CHART, alt=alt)


def caption(chosen: Filters, metric: str, kept: str, table: pd.DataFrame) -> None:
    """What the lines are: slice, rows, formula, capacity."""
    known = "The source does not say the device's memory." if words.missing(table["gpu_memory_mb"].max()) else ""
    shown = filters.words_of(replace(chosen, shape=kept, head_dim=()))
    rows = f"{METRICS[metric].description} · {messages.counted(len(table), 'row')}, reduction within one run"
    badges = messages.source_badges(sorted(set(table["source"])))
    dotted = f"Dotted: by formula, {_formula_words(table, chosen.mode)}. " if metric == "peak_memory_mb" else ""
    st.caption(f"{badges} {shown} · {rows}. {dotted}{known}")


def reduction_table(table: pd.DataFrame, predicted: pd.DataFrame) -> None:
    """Memory, reduction and formula of every row."""
    shown = with_formula(table, predicted)
    shown["status"] = [words.status(name) for name in shown["status"]]
    shown["note"] = shown["note"].fillna("")
    shown["source"] = [words.sources(name) for name in shown["source"]]
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
    known = [f"{words.plain(', '.join(names))}: {of}" for of, names in same.items()]
    return "; ".join(known) or "none, because the algorithms are not known"


def case_of(row: dict) -> dict:
    """A row as a case for a formula: what the source did not say is None."""
    known = {name: None if words.missing(value) else value for name, value in row.items()}
    return known | {"head_dim": int(row["head_dim"]) if row["head_dim"].isdigit() else None}
