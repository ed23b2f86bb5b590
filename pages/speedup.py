"""By how much is an implementation faster than the baseline, in each cell, and where does it fail?"""

from __future__ import annotations

import streamlit as st

from pages.ui.draw import cell_picker, cells, detail, heatmaps, maps, messages, text
from pages.ui.filters import sidebar
from pages.ui.overview.ranking import best_of, rivals_of
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.query import speedups
from results.slice import Filters, level_in


def show() -> None:
    """Draw the speedups of one implementation over the slice, and a chosen cell of them closely."""
    chosen = sidebar.current()
    rivals = rivals_of(ask(speedups.ranked, chosen), chosen)
    if not rivals:
        messages.nothing_here(chosen, "speedups")
        return
    shown = choose(rivals, chosen)
    level = level_in(chosen)
    table = cells.speedup_cells(level, ask(speedups.cells, chosen), shown, chosen.baseline)
    alt = f"Speedup of {shown} over {chosen.baseline} by {level.columns.label} and {level.rows.label}"
    maps.show(level, table, maps.speedups(table), "speedup_map", alt)
    messages.slice_caption(
        chosen,
        rows=sum(cell["speedup"] is not None for cell in table),
        statistic=text.statistic(cell["statistic"] for cell in table),
        sources=[cell["source"] for cell in table],
        note="Purple is faster than the baseline, orange slower. Select a cell for its details.",
    )
    if place := cell_picker.pick(level, table):
        detail.cell_detail(chosen, place)
    with st.expander("Every cell", icon=":material/table_rows:", key="every_cell", on_change="rerun") as every_cell:
        if every_cell.open:
            cells.cells_table(level, table, chosen.baseline)
    cells.pictures(level, table, heatmaps.speedup_heatmap, f"speedup-{shown}", alt)
    with st.container(horizontal=True):
        messages.download("Download cells", f"speedup_{shown}", lambda: cells.speedups_csv(table), "speedup_csv")
        messages.download_latencies(chosen)
    messages.provenance(chosen)


def choose(rivals: list[dict], chosen: Filters) -> str:
    """Ask for the implementation to look at, and say its mean in words."""
    names = [row["implementation"] for row in rivals]
    best = best_of(rivals)  # not one that is ahead over a few cases only
    first = names[0] if best is None else best["implementation"]
    shown = st.pills("Implementation", names, default=first, required=True, key="show", bind="query-params", wrap=True)
    name, baseline = text.plain(shown), text.plain(chosen.baseline)
    row = rivals[names.index(shown)]
    if row["compared"]:
        st.markdown(
            f"#### {name}: {text.ratio(row['speedup'])} {baseline}, geometric mean of {row['compared']} of "
            f"{row['cases']} cases, {text.ratio(row['lowest'])} to {text.ratio(row['highest'])}"
        )
    else:
        st.markdown(f"#### {name} has no case in common with {baseline}")
    return shown


layout.header("Speedup", ":material/bolt:", "By how much is it faster than the baseline, and where does it fail?")
page_body.show(show)
