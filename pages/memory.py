"""What does each implementation take as sequences grow, where does it stop fitting, is it as the formula says?"""

from __future__ import annotations

import streamlit as st

from pages.ui.draw import charts, messages, text
from pages.ui.filters import sidebar
from pages.ui.memory import by_seqlen, fits, parts
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.metrics import MEMORY_METRICS
from results.query import pages


def show() -> None:
    """Draw one metric of the slice by sequence length, what fits, and every number."""
    chosen = sidebar.current()
    metric, taken = by_seqlen.choose_metric(chosen)
    if metric is None:
        messages.nothing_here(chosen, "memory", MEMORY_METRICS)
        return
    table = ask(pages.memory, taken, metric)
    table, kept = by_seqlen.one_shape(table)
    if table.empty:
        messages.nothing_here(taken, "memory by seqlen", MEMORY_METRICS)
        return
    by_seqlen.headline(table, taken)
    peak = metric == "peak_memory_mb"  # what must fit, and what has a formula
    capacities = fits.choose(table) if peak else {}
    formulas = by_seqlen.formulas(table, metric)
    by_seqlen.show_lines(table, formulas, charts.colours(table["implementation"].unique().tolist()), metric, capacities)
    by_seqlen.caption(taken, metric, kept, table)
    if peak:
        fits.show(table, *capacities.values())
    parts.show(taken, table)
    label = f"Reduction against {text.plain(taken.baseline)}: every number"
    with st.expander(label, icon=":material/table_rows:", key="every_number", on_change="rerun") as every_number:
        if every_number.open:
            by_seqlen.reduction_table(table, formulas)
    messages.download("Download memory", metric, lambda: by_seqlen.with_formula(table, formulas), "memory_csv")
    messages.provenance(chosen)


layout.header("Memory", ":material/memory:", "What does it take as sequences grow, and where does it stop fitting?")
page_body.show(show)
