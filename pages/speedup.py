"""How much faster is an implementation than the baseline for each shape, and where does it fail?"""

from functools import partial

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, detail, maps, messages, text, titles
from pages.ui.filters import chips, select
from pages.ui.overview.ranking import about, best_of, rivals_of, undecided
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.query import pages, pairing, speedups
from results.recommend import certainty
from results.slice import Filters, level_in

_DRAWN = ("shown", "failure", "hover", "mark", "label")  # words of the map


def show() -> None:
    """Draw the speedups of one implementation over the slice, and a chosen cell in detail."""
    chosen = chips.current()
    for question in (speedups.cells, pages.provenance, pairing.outdated):
        ask(question, chosen)  # before anything is drawn: what arrives at once, the browser draws once
    rivals = rivals_of(ask(speedups.ranked, chosen), chosen)
    if not rivals:
        messages.nothing_here(chosen, "speedups")
        return
    best = best_of(rivals) or rivals[0]  # the fastest that covers most shapes
    names = [row["implementation"] for row in rivals]
    shown = select.pills("Implementation", "show", names, best["implementation"])
    level = level_in(chosen)
    ranges = ask(certainty.speedup_ranges, chosen, shown)
    table = cells.speedup_cells(level, ask(speedups.cells, chosen), shown, chosen.baseline, ranges)
    said = _sentence(next(row for row in rivals if row["implementation"] == shown), table, chosen)
    compared = [cell for cell in table if cell["speedup"] is not None]
    st.markdown(f"## {said}\n\n{undecided(compared, 'comparison', 'to say faster or slower')}")
    alt = f"Speedup of {shown} over {chosen.baseline} by {level.columns.label} and {level.rows.label}"
    title = titles.of_slice(alt, chosen, [cell["run_id"] for cell in table], versus=True)
    look = maps.speedups(table, chosen.baseline)
    with detail.around(chosen, table):
        maps.show(level, table, look, "speedup_map", alt, selectable=True, title=title)
        messages.slice_caption(
            chosen,
            rows=len(compared),
            statistic=text.statistic((cell["statistic"] for cell in table), (cell["n"] for cell in table)),
            sources=[cell["source"] for cell in table],
            note="Purple is faster than the baseline, orange slower.",
        )
    messages.folded("Every shape", "every_cell", lambda: cells.cells_table(level, table, chosen.baseline))
    with st.popover("Download", icon=":material/download:"):
        title = titles.of_slice(f"Speedup of {shown}", chosen, versus=True)
        numbers = partial(
            pd.DataFrame, table, columns=[name for row in table[:1] for name in row if name not in _DRAWN]
        )
        messages.download_slice("Download speedups", title, chosen, numbers, "speedup_csv")
        messages.download_latencies(chosen)
    messages.provenance(chosen)


def _sentence(row: dict, table: list[dict], chosen: Filters) -> str:
    """Return the headline: the mean speedup over the baseline, or the reason why there is none."""
    name, baseline = text.plain(row["implementation"]), text.plain(chosen.baseline)
    if row["compared"]:
        return (
            f"{about(chosen, table)} {name} is {text.ratio(row['speedup'])} {baseline} on average over "
            f"{row['compared']} of {messages.counted(row['cases'], 'shape')}, "
            f"range {text.span(row['lowest'], row['highest'])}"
        )
    if row["failures"] and row["unsupported"] == row["failures"]:
        mode = text.MODE_WORDS.get(chosen.mode or "", chosen.mode)
        return f"{name} does not support these shapes ({mode}), so there is nothing to compare"
    return f"{name} and {baseline} were not both timed for any shape"


layout.header("speedup")
page_body.show(show)
