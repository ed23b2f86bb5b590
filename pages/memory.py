"""How much memory does each implementation take as sequences grow, and when does it no longer fit?"""

from functools import partial

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.filters import chips
from pages.ui.memory import by_seqlen, fits, parts
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.metrics import MEMORY_METRICS
from results.query import pages


def show() -> None:
    """Draw one metric of the slice by sequence length, the longest sequences that fit, and every number."""
    chosen = chips.current()
    with st.container(horizontal=True, gap="medium"):
        metric, taken = by_seqlen.choose_metric(chosen)
        table = pd.DataFrame() if metric is None else ask(pages.memory, taken, metric)
        if len(table):
            table, kept = by_seqlen.one_shape(table)
            view = by_seqlen.MemoryView(taken, metric, kept)
            peak = metric == "peak_memory_mb"  # only the peak must fit and has a formula
            capacities = fits.choose(table) if peak else {}
    if table.empty:
        messages.nothing_here(taken, "memory by seqlen" if metric else "memory", MEMORY_METRICS)
        return
    by_seqlen.headline(table, taken)
    formulas = by_seqlen.formulas(table, metric)
    by_seqlen.show_lines(table, formulas, view, capacities)
    by_seqlen.caption(view, table)
    if peak:
        offer_fits = fits.show(table, next(iter(capacities.values())), view)
    parts.show(view, table)
    label = f"Reduction against {text.plain(taken.baseline)}: every number"
    messages.folded(label, "every_number", lambda: by_seqlen.reduction_table(table, formulas))
    with st.popover("Download", icon=":material/download:"):
        if peak:
            offer_fits()
        every = partial(by_seqlen.with_formula, table, formulas)
        messages.download_slice("Download memory", view.title(table), taken, every, "memory_csv")
    messages.provenance(chosen)


layout.header("memory")
page_body.show(show)
