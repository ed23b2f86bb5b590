"""The costs of cache formats on the page Decode: pages, ragged lengths, e4m3 and several query tokens."""

import math
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, colours, maps, messages, tables, text, titles
from pages.ui.draw.tables import Fact
from pages.ui.filters import select
from results.derive import geometric_mean
from results.levels import Level
from results.query import cache_costs
from results.slice import Filters

_MORE = messages.SAID["cache_costs"]["help"]
_KINDS = text.WORDS["cache_kinds"]
_COLUMNS = tables.declared("cache_costs")


def section(level: Level, table: pd.DataFrame, chosen: Filters) -> None:
    """Draw a table of every form, then the map of one form and implementation; draw nothing without such cases."""
    if table.empty:
        return
    st.subheader("Cost of paging, ragged lengths, an FP8 cache and several query tokens")
    headline(table)
    found = cache_costs.summary(table)
    found = found.iloc[sorted(range(len(found)), key=lambda at: _order(found["form"].iloc[at]))]
    alt = "Time over that of the plain cache, by form, shape and implementation"
    tables.grid(found.dropna(axis="columns", how="all"), alt, _COLUMNS)
    form, name, rows = _choose(table)
    st.markdown(f"**{text.plain(name)}: {text.plain(form)} over the same tokens without it**")
    drawn = map_cells(level, rows)
    maps.show(level, drawn, look(drawn), "cost_map", f"Time of {form} over plain")
    messages.say("cache_costs")
    title = titles.of_slice("Cost of the cache's form", chosen, table["run_id"].unique())
    messages.download_slice("Download costs", title, chosen, lambda: table, "costs_csv")


def headline(table: pd.DataFrame) -> None:
    """Draw the cost of each kind of form for the implementation with most of these cases."""
    name = leading(table)
    own = table[table["implementation"] == name]
    st.markdown(f"Time of {text.plain(name)} over its time for the plain cache of as many tokens (geometric means):")
    kinds = own["form"].map(lambda form: _order(form)[0])
    tables.show_facts(_fact(kind, own[kinds == kind]) for kind in sorted(kinds.unique()))


def _fact(kind: str, rows: pd.DataFrame) -> Fact:
    """Return the cost of a kind of form: its factor, and below it the range or the errors of a quantized cache."""
    numbers = sorted({_order(form)[1] for form in rows["form"]} - {0})
    of = f" {'–'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))}" if numbers else ""
    below = f"range {text.span(rows['ratio'].min(), rows['ratio'].max())}"
    errors = rows[["plain_error", "error_original"]].median()
    if not math.isnan(errors["error_original"]):
        plain = "" if math.isnan(errors["plain_error"]) else f", {errors['plain_error']:.1e} without"
        below = f"error {errors['error_original']:.1e}{plain}"
    return Fact(f"{_KINDS.get(kind, kind)}{of}", text.ratio(geometric_mean(rows["ratio"])), below, _MORE)


def leading(table: pd.DataFrame) -> str:
    """Return the implementation with most rows; of several with equally many, the fastest."""
    found = {name: (len(rows), -geometric_mean(rows["latency_ms"])) for name, rows in table.groupby("implementation")}
    return max(found, key=found.get)


def map_cells(level: Level, table: pd.DataFrame) -> list[dict]:
    """Return the cells of a form and implementation: the geometric mean of the ratios at a context and batch."""
    places = list(cells.place_columns(level))
    return [
        dict(zip(places, place, strict=True)) | _cell(level, rows)
        for place, rows in table.groupby(places, dropna=False)
    ]


def look(table: Sequence[dict]) -> maps.Look:
    """Color the ratios of a table by their log2 around 1×, as inverse speedups."""
    found = colours.speedup_scale(1 / row["ratio"] for row in table)
    scale = {"colours": list(found.colours), "ticks": found.ticks[::-1]}
    return maps.Look(lambda row: found.colour(1 / row["ratio"]), lambda row: text.ratio(row["ratio"]), scale=scale)


def _choose(table: pd.DataFrame) -> tuple[str, str, pd.DataFrame]:
    """Ask for a form, an implementation and a shape; return the form, the implementation and their rows."""
    form = select.pills("Form", "form", sorted(table["form"].unique(), key=_order))
    rows = table[table["form"] == form]
    name = select.pills("Implementation", "costs_of", sorted(rows["implementation"].unique()), leading(rows))
    rows = rows[rows["implementation"] == name]
    shapes = sorted(rows["beside"].unique(), key=lambda shape: (len(shape), shape))
    return form, name, rows[rows["beside"] == select.one_of_several("Shape", "costs_beside", shapes)]


def _order(form: str) -> tuple[str, int]:
    """Sort forms by kind, and pages and query tokens by their number."""
    numbers = [word for word in form.split() if word.isdigit()]
    kind = " ".join(word for word in form.split() if not word.isdigit())
    return kind, int(numbers[0]) if numbers else 0


def _cell(level: Level, rows: pd.DataFrame) -> dict:
    first = rows.iloc[0]
    ratio = geometric_mean(rows["ratio"])
    lines = [
        f"{level.columns.label} {int(first['seqlen'])}, {level.rows.label} {int(first['batch'])}",
        f"{text.ms(geometric_mean(rows['latency_ms']))} over {text.ms(geometric_mean(rows['plain_ms']))}",
    ]
    for name, words in (("error", "as stored"), ("error_original", "on the original cache")):
        error = rows[name].median()
        lines += [] if error is None or math.isnan(error) else [f"error {words}: {error:.2e}"]
    lines += [f"geometric mean of {len(rows)} shapes"] if len(rows) > 1 else []
    return {"ratio": ratio, "shown": ratio, "status": "ok", "failure": None, "hover": "<br>".join(lines)}
