"""Memory by seqlen with its formula, the longest sequences that fit, and the parts of the peak."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, colours, messages, tables, text, titles
from pages.ui.draw.charts import Chart, Series
from pages.ui.filters import chips, select
from pages.ui.shell.data import ask
from results import levels
from results.grouping import grouped
from results.implementations import facts_of
from results.metrics import MEMORY_METRICS, METRICS
from results.query import memory, pages
from results.query.declared import declared, of_rows
from results.slice import Filters, level_in

SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
COLUMNS = ("implementation", "dtype", "head_dim", "seqlen", "value", "reduction", "status", "note", "source", "run_id")
_THIS = "this device"
_EQUAL = 0.005  # a relative difference below this counts as equal
_NAMED = 3  # a headline names up to so many implementations and counts more
_MARKS = [2.0**power for power in range(-12, 26, 4)]  # MiB
_LABELS = text.WORDS["memory_parts"]
_PART_COLOURS = {"given": "#0072b2", "returned": "#56b4e9", "matrices": "#d55e00", "workspace": "#009e73"}
_PART_COLUMNS = ("implementation", "dtype", "seqlen_q", *memory.MEASURED, *memory.PREDICTED, "of_formula")
_mib = "{:,.3g} MiB".format


@dataclass(frozen=True)
class MemoryView:
    """The choices of the page: a metric of one shape."""

    taken: Filters  # the slice, with a mode in which memory was measured
    metric: str
    kept: str  # head_dim, batch and heads, in words

    def title(self, table: pd.DataFrame, dtype: str | None = None) -> titles.ChartTitle:
        """Return the title of a chart or file with these rows."""
        what = f"{METRICS[self.metric].label} by seqlen" + (f", {dtype}" if dtype else "")
        sliced = replace(self.taken, timing=None, head_dim=(), shape=self.kept)
        return titles.of_slice(what, sliced, table["run_id"].unique())


def show() -> None:
    """Draw one metric of the slice by sequence length, the longest sequences that fit, and every number."""
    chosen = chips.current()
    with st.container(horizontal=True, gap="medium"):
        metric, taken = choose_metric(chosen)
        table = pd.DataFrame() if metric is None else ask(pages.memory, taken, metric)
        if len(table):
            table, kept = one_shape(table)
    if table.empty:
        messages.nothing_here(taken, "memory by seqlen" if metric else "memory", MEMORY_METRICS)
        return
    view, predicted = MemoryView(taken, metric, kept), formulas(table, metric)
    headline(table, taken)
    picture = st.container()
    peak = metric == "peak_memory_mb"  # only the peak must fit and has a formula
    capacities = choose_capacity(table) if peak else {}
    with picture:
        draw_lines(table, predicted, view, capacities)
    if peak:
        offer_fits = draw_fits(table, next(iter(capacities.values())), view)
    label = "What the peak is made of: inputs, saved for backward, workspace, reserved, and the formula"
    messages.folded(label, "memory_kinds", lambda: draw_kinds(view, table), ":material/stacks:")
    every = partial(with_formula, table, predicted)
    label = f"Reduction against {text.plain(taken.baseline)}: every number"
    messages.folded(label, "every_number", lambda: _reductions(every()))
    with st.popover("Download", icon=":material/download:"):
        if peak:
            offer_fits()
        messages.download_slice("Download memory", view.title(table), taken, every, "memory_csv")
    messages.provenance(chosen)


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
        sizes = dict.fromkeys(text.mib(value) for value in (best["value"], equal["value"].max()))
        parts.append(
            f"{text.plain(who)} {' to '.join(sizes)} at seqlen {text.size(best['seqlen'])}, "
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


def draw_lines(table: pd.DataFrame, predicted: pd.DataFrame, view: MemoryView, capacities: dict[str, float]) -> None:
    """Draw memory by seqlen of one dtype, and explain the lines; a second chart would take the browser as long."""
    metric, palette = METRICS[view.metric], colours.palette(table["implementation"].unique().tolist())
    measured = table["value"].dropna().tolist()
    top = max([*measured, *capacities.values(), *predicted["value"].dropna(), 1e-3])
    ends = [math.log10(min([top, *measured])) - 0.3, math.log10(top) + 0.6]
    y_axis = charts.log_ticks(_MARKS, _round_mib) | charts.titled(metric.label) | {"range": ends}
    chart = memory_lines(table, palette, capacities, predicted, y_axis)
    alt = f"{metric.label} by seqlen, one line for each implementation"
    charts.show(chart, view.title(table, table["dtype_name"].iloc[0]), key="memory", alt=alt)
    known = " The source does not state the device's memory." if text.missing(table["gpu_memory_mb"].max()) else ""
    badges = messages.source_badges(sorted(set(table["source"])))
    by_formula = view.metric == "peak_memory_mb"
    st.caption(
        f"{badges} {metric.description[:1].upper()}{metric.description[1:]} · {messages.counted(len(table), 'row')}."
        f"{' Dotted: predicted by formula.' * by_formula}{known}",
        help=f"Counted by the formula: {_formula_words(table, view.taken)}." if by_formula else None,
    )


def _reductions(table: pd.DataFrame) -> None:
    shown = tables.in_words(table).dropna(axis="columns", how="all")
    tables.grid(shown, "Memory and reduction of every row", tables.declared("memory"))


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
    for words, value in capacities.items() if sizes else ():
        labels = [f"{words} {text.mib(value)}", ""]
        ends = [min(sizes), max(sizes)]
        found.append(charts.reference(words, ends, [value, value], labels=labels, legend=False))
    return charts.by_size(found, "seqlen", sizes, y_axis, room_for=palette)


def _first_oom(rows: list[dict], name: str, colour: str, top: float, predicted: dict[tuple, float]) -> Series | None:
    failed = sorted(int(row["seqlen"]) for row in rows if row["implementation"] == name and row["status"] == "oom")
    if not failed:
        return None
    formula = predicted.get((name, failed[0]))
    needs = f", needs {text.mib(formula)} by formula" if formula else ""
    said = [f"{name}: out of memory from here{needs}"]
    look: dict[str, Any] = {"symbol": "x", "size": 13, "outline": 1, "legend": False, "label_at": "bottom left"}
    return Series(f"{name} OOM", failed[:1], [top], colour, said, group=name, **look)


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


def choose_capacity(table: pd.DataFrame) -> dict[str, float]:
    """Ask for a memory size; return MiB by its name. The default is the memory of the device."""
    capacity = table["gpu_memory_mb"].max()
    sizes = [*[_THIS] * (not text.missing(capacity)), *(f"{size} GB" for size in SIZES_GB)]
    about = "Device memory to judge by. A gigabyte is taken as 1024 MiB, as cards are sold."
    usual = _THIS if _THIS in sizes else "24 GB"
    chosen = select.named_choice("Does it fit in", "fits_in", sizes, usual, help=about, width=240)
    if chosen == _THIS:
        return {"device memory": float(capacity)}
    return {f"{chosen}:": 1024.0 * int(chosen.split()[0])}


def longest(table: pd.DataFrame, capacity_mb: float) -> tuple[int | None, pd.DataFrame]:
    """Return the smallest batch of the longest sequences, and what fits at it by implementation.

    A seqlen that fits at a larger batch also counts, because it needs no more memory at this batch.
    """
    rows = table.sort_values(["seqlen", "batch"], ascending=[False, True]).to_dict("records")
    batch = next((int(row["batch"]) for row in rows if not text.missing(row["batch"])), None)
    kinds = grouped(rows, lambda row: row["implementation"])
    columns = {"measured": "Int64", "no_more_from": "Int64", "formula": "Int64", "peak_mb": float}
    fits = [{"implementation": name, **_fit(of_kind, batch, capacity_mb)} for name, of_kind in kinds.items()]
    return batch, pd.DataFrame(fits).astype(columns).sort_values(["measured", "formula"], ascending=False)


def draw_fits(table: pd.DataFrame, capacity_mb: float, view: MemoryView) -> Callable[[], None]:
    """Draw the answer in a table; return what offers it as a file."""
    batch, fits = longest(table, capacity_mb)
    what = f"Longest sequence in {text.mib(capacity_mb)}{'' if batch is None else f' at batch {batch}'}"
    st.subheader(what)
    tables.show_table(fits.to_dict("records"), tables.declared("fits"), f"{what}, by implementation")
    title = replace(view.title(table), what=what)
    made = partial(fits.assign, dtype=table["dtype_name"].iloc[0], batch=batch, capacity_mb=capacity_mb)
    return partial(messages.download_slice, "Download what fits", title, view.taken, made, "fits_csv")


def _fit(rows: list[dict], batch: int | None, capacity_mb: float) -> dict:
    """Return the longest sequences of one implementation; the rows have the longest first."""
    inside = next((row for row in rows if row["value"] <= capacity_mb), {})
    beyond = [row for row in rows if row["value"] > capacity_mb or row["status"] == "oom"]
    return {
        "measured": inside.get("seqlen"),
        "peak_mb": inside.get("value"),
        "no_more_from": min((row["seqlen"] for row in beyond if batch in (None, row["batch"])), default=None),
        "formula": _by_formula(rows[0] | {"batch": batch}, capacity_mb, inside.get("seqlen") or 0),
    }


def _by_formula(row: dict, capacity_mb: float, measured: int) -> int | None:
    """Return the longest seqlen that fits by formula, or the longest measured one if that is longer.

    Return None if nothing fits or is known. If no measurement confirms the formula, the result is a power of two.
    """
    law = facts_of(row["implementation"], ask(of_rows), row["run_id"]).memory
    predicted = levels.largest_seqlen(case_of(row), law, row["mode"], capacity_mb)
    return max(predicted, measured) or None if predicted is not None else None


def draw_kinds(view: MemoryView, drawn: pd.DataFrame) -> None:
    """Draw every kind of memory of the drawn rows: the parts of the peak as bars, and a table."""
    found = kinds_of(ask(memory.parts, view.taken, tuple(drawn["run_id"].unique())), drawn)
    if found.empty:
        st.caption("The source states no other kind of memory.")
        return
    longest = found[found["seqlen_q"] == found["seqlen_q"].max()]
    what = f"Peak memory by part at seqlen {text.size(longest['seqlen_q'].iloc[0])}, {longest['dtype'].iloc[0]}"
    alt = f"{what}: the formula's parts stacked, the measured peak as a mark"
    charts.show(parts_chart(longest), replace(view.title(longest), what=what), key="kinds", alt=alt)
    measured = ((name, METRICS[name]) for name in memory.MEASURED)
    config = tables.declared("named")
    config |= {name: tables.number(f"{of.label} (MiB)", help=of.description) for name, of in measured}
    for name, (label, about) in _LABELS.items():
        config[name] = tables.number(label if name == "of_formula" else f"{label} (MiB)", help=about)
    shown = found[[*_PART_COLUMNS]].dropna(axis="columns", how="all").rename(columns={"seqlen_q": "seqlen"})
    tables.grid(shown, "Kinds of memory, measured and by formula, of every drawn row", config)
    messages.say("memory_kinds")
    title = replace(view.title(drawn), what="Kinds of memory")
    messages.download_slice("Download kinds", title, view.taken, lambda: found, "kinds_csv")


def kinds_of(found: pd.DataFrame, drawn: pd.DataFrame) -> pd.DataFrame:
    """Return the kinds of memory of the rows that are drawn, with measured over formula."""
    wanted = set(zip(*(drawn[name] for name in ("run_id", "implementation", "seqlen")), drawn["dtype"], strict=True))
    shapes = set(zip(drawn["shape"], drawn["head_dim"], strict=True))
    head_dims = [text.size(d) if text.missing(d) else str(int(d)) for d in found["head_dim"]]
    keys = zip(*(found[name] for name in ("run_id", "implementation", "seqlen_q")), found["dtype"], strict=True)
    places = zip(found["shape"], head_dims, strict=True)
    kept = found[[key in wanted and place in shapes for key, place in zip(keys, places, strict=True)]]
    return kept.assign(of_formula=kept["peak_memory_mb"] / kept["peak"])


def parts_chart(rows: pd.DataFrame) -> Chart:
    """Return a bar for each implementation, stacked from the formula's parts, with the measured peak as a mark."""
    names = colours.ordered(rows["implementation"])[::-1]
    own = rows.drop_duplicates("implementation").set_index("implementation").loc[names]
    found = []
    for part, colour in _PART_COLOURS.items():
        if own[part].fillna(0).any():
            name = _LABELS[part][0].removeprefix("formula: ")
            said = [f"{name}: {_mib(value)}" for value in own[part]]
            found.append(Series(name, own[part], names, colour, said, bars="h"))
    peaks = own["peak_memory_mb"]
    said = [f"measured peak: {_mib(value)}" for value in peaks]
    look: dict[str, Any] = {"symbol": "line-ns-open", "size": 18, "outline": 3}
    found.append(Series("measured peak", peaks, names, colours.EMPTY_COLOUR, said, **look))
    x = charts.titled("MiB") | {"rangemode": "tozero"}
    return Chart(found, x, {"automargin": True}, 220 + 26 * len(names), "y unified", stacked=True)
