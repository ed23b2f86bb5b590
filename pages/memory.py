"""What does each implementation take as sequences grow, where does it stop fitting, is it as the formula says?"""

from __future__ import annotations

import streamlit as st

from pages.ui import memory, memory_fits
from pages.ui import memory_fits as memory_kinds
from pages.ui.draw import charts, messages, text
from pages.ui.filters import filters
from pages.ui.shell import body
from pages.ui.shell.data import ask
from results.query import pages


def show() -> None:
    """One metric of the slice by sequence length, what fits, and every number."""
    chosen = filters.current()
    metric, taken = memory.choose_metric(chosen)
    if metric is None:
        messages.nothing_here(chosen, "memory", pages.MEMORY_METRICS)
        return
    table = ask(pages.memory, taken, metric)
    table, kept = memory.one_shape(table)
    if table.empty:
        messages.nothing_here(taken, "memory by seqlen", pages.MEMORY_METRICS)
        return
    memory.headline(table, taken)
    peak = metric == "peak_memory_mb"  # what must fit, and what has a formula
    capacities = memory_fits.choose(table) if peak else {}
    formulas = memory.formulas(table, metric)
    memory.facets(table, formulas, charts.colours(table["implementation"].unique().tolist()), metric, capacities)
    memory.caption(taken, metric, kept, table)
    if peak:
        memory_fits.show(table, *capacities.values())
    memory_kinds.show_parts(taken, table)
    label = f"Reduction against {text.plain(taken.baseline)}: every number"
    with st.expander(label, icon=":material/table_rows:", key="every_number", on_change="rerun") as every_number:
        if every_number.open:
            memory.reduction_table(table, formulas)
    messages.download("Download memory", metric, lambda: memory.with_formula(table, formulas), "memory_csv")
    messages.provenance(chosen)


messages.header("Memory", ":material/memory:", "What does it take as sequences grow, and where does it stop fitting?")
body.show(show)
