"""Speed against the cost of a token: what a GPU-hour costs and what its power limit allows, by context and batch."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import select
from pages.ui.shell.data import ask
from results.query import pages

_COSTS = {"dollars": "dollars per million tokens", "joules": "joules per million tokens, at most"}
_TABLE = tables.declared("costs")


def section(table: pd.DataFrame, what: str, title: Callable[[str, pd.DataFrame], ChartTitle]) -> None:
    """Ask for a price; draw the cost of generated tokens over the tokens/s of one sequence.

    `table` has the steps: implementation, context as seqlen, batch, seqlen_q, latency_ms, run_id. `what` names the
    timed work.
    """
    for name, label in (("dtype", "dtype"), ("shape", "Heads and cache")):
        if name in table and table[name].notna().any():
            table, _ = select.rows_of_one(table, name, "latency_ms", f"frontier_{name}", label)
    found = points(table, dict(ask(pages.runs)[["run_id", "power_limit_w"]].itertuples(index=False)))
    if found.empty:
        return
    st.subheader("Speed against cost per token")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        price = select.widget("price")
        there = [name for name in _COSTS if name == "dollars" or found[name].notna().any()]
        cost = select.segments("Cost", "cost", there) if len(there) > 1 else there[0]
    found = found.assign(dollars=price * found["dollars"])
    cheapest = found.loc[found[cost].idxmin()]
    st.markdown(
        f"Cheapest{f' at ${price:g} a GPU-hour' if cost == 'dollars' else ''}: "
        f"**{text.significant(cheapest[cost])} {_COSTS[cost]}** of {what}, at context "
        f"{text.size(cheapest['seqlen'])} and batch {cheapest['batch']:g} "
        f"with {text.plain(cheapest['implementation'])}."
    )
    said = f"Cost of {what} over speed"
    charts.show(chart(found, cost), title(said, found), key="frontier", alt=f"{said}; the table below has the numbers")
    messages.say("frontier")
    messages.folded("Costs as a table", "frontier_table", lambda: tables.grid(found[[*_TABLE]], said, _TABLE))


def points(table: pd.DataFrame, watts: dict[str, float]) -> pd.DataFrame:
    """Return the steps of the frontier with rates and costs: `dollars` at 1 $ an hour, `joules` at the power limit."""
    known = table[table["latency_ms"].notna() & table["batch"].notna()]
    known = known.assign(rate=1e3 * known["batch"] * known["seqlen_q"].fillna(1) / known["latency_ms"])
    by_batch = known["batch"].nunique() > 1
    if by_batch:
        known = known.loc[known.groupby(["seqlen", "batch"])["latency_ms"].idxmin()]
    else:
        known = known.sort_values("latency_ms").drop_duplicates(["implementation", "seqlen"])
    lines = known["seqlen"].map(lambda size: f"context {text.size(size)}") if by_batch else known["implementation"]
    return known.assign(
        series=lines,
        speed=known["rate"] / known["batch"],
        dollars=1e6 / 3600 / known["rate"],
        joules=1e6 * known["run_id"].map(watts).astype(float) / known["rate"],
    ).sort_values(["seqlen", "batch"], ignore_index=True)


def chart(found: pd.DataFrame, cost: str) -> charts.Chart:
    """Return a line for each context over batches, or for each implementation over contexts, both axes logarithmic."""
    names = list(found["series"].unique())
    palette = colours.palette(names)
    if found["batch"].nunique() > 1:
        spare = colours.SPARE_COLOURS
        palette = {name: spare[at % len(spare)] for at, name in enumerate(names)}

    def hover(row: dict) -> str:
        return f"batch {row['batch']:g}, context {text.size(row['seqlen'])}, {row['implementation']}\n" + (
            f"{text.significant(row['speed'])} tokens/s a sequence, {text.significant(row[cost])} {_COSTS[cost]}"
        )

    drawn = charts.lines(found.dropna(subset=[cost]).to_dict("records"), cost, palette, hover, of="series", by="speed")
    drawn.sort(key=lambda line: names.index(line.name))
    x, y = (charts.close_log_axis(found[name].min(), found[name].max(), "{:g}".format) for name in ("speed", cost))
    return charts.Chart(drawn, x | charts.titled("tokens/s a sequence"), y | charts.titled(_COSTS[cost]))
