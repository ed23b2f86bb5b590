"""A comparison on the page: the verdicts as a sentence, a chart or a map, the coverage, every shape, and the means."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, charts, maps, messages, tables, text
from pages.ui.draw.detail import RUN_FACTS
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters import chips, select
from pages.ui.shell.data import ask
from results import levels
from results.compare.compare import ComparedCell, Comparison, Mean
from results.compare.verdicts import BAND, Doubt
from results.derive import geometric_mean, tflops
from results.levels import level_of
from results.query import pages
from results.records import case_to_json
from results.render.terminal import coverage_words, stated
from results.slice import AS_PUBLISHED

UNCLEAR = NOISY, BY_CLOCK, ALONE = tuple(f"UNCLEAR: {doubt}" for doubt in Doubt)
MARKS: dict[str, list[str]] = text.WORDS["verdict_marks"]  # color and symbol
_TWOS = [2.0**power for power in range(-10, 11)]
_FINE = [0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7]
MEANINGS: dict[str, str] = text.WORDS["verdicts"]  # in the order of a headline
RULE = messages.SAID["verdicts"]["text"]
HELP = f"{messages.SAID['verdicts']['help']} {' '.join(f'{name}: {meaning}.' for name, meaning in MEANINGS.items())}"
_FACTS = RUN_FACTS | text.WORDS["compared_facts"]
_NOT_SHOWN = ["speedup", "batch", "num_heads", "level", "timing"]  # drawn elsewhere, or with one value only
_RATIO = "%.3f×"
_SIGNS = {"FASTER": "▲", "SLOWER": "▼", "SAME": "=", "LOST": "", "GAINED": ""} | dict.fromkeys(UNCLEAR, "?")
_CHOICES = (("level", "Level", ("op",)), ("mode", "Mode", chips.MODES), ("mask", "Mask", ("causal", "full")))


def answer(
    found: Comparison,
    voided: Mapping[str, str],
    key: str,
    draw: Callable[[pd.DataFrame, ChartTitle], None] | None = None,
) -> pd.DataFrame:
    """Ask for a timing; draw its verdicts in one line with the mean speedup, as a picture, and their coverage.

    Return the cells of the timing; `draw` gets those with the title of the picture, which else is a map of means with
    a folded chart of every shape. The map needs nothing of Plotly, which takes the browser longer than the answer.
    """
    table = cells_table(found, voided)
    timings = [timing for timing in chips.TIMINGS if timing in set(table["timing"])]
    timing = select.segments("Timing", key, timings) if len(timings) > 1 else timings[0]
    table = table[table["timing"] == timing]
    counts = table["verdict"].value_counts()
    parts = [
        f"{counts[verdict]} {verdict.lower().replace(': ', ' (') + ')' * (':' in verdict)}"
        for verdict in sorted(MEANINGS, key=UNCLEAR.__contains__)  # the decided ones first
        if verdict in counts
    ]
    means = [mean for mean in found.means if mean.implementation is None and mean.mode is None]
    means = [mean for mean in means if (mean.timing or AS_PUBLISHED) == timing]
    average = [f" · {_fine(mean.speedup)} on average" for mean in means if mean.speedup][:1]
    count = messages.counted(len(table), "shape")
    words = f"{', '.join(parts)}, of {count}{''.join(average)}" if parts else "No shared shape"
    st.markdown(f"## {words}", help=HELP)
    some = bool(table["speedup"].notna().any())
    if some:
        (draw or draw_means)(table, title(found, timing))
    st.caption(RULE, help=HELP)
    known = [coverage_words(each) for each in found.coverage if (each.timing or AS_PUBLISHED) == timing]
    seen = [mean.detectable for mean in means if mean.detectable]
    known += [f"Median smallest detectable change: {change(seen[0])}."] if seen else []
    st.caption(" ".join(known))
    if some and draw is None:
        alt = "Speedup and interval of each shape by latency"

        def drawn() -> None:
            charts.show(speedup_chart(table), title(found, timing), key=f"{key}_chart", alt=alt)

        messages.folded("Every shape by latency", f"{key}_scatter", drawn, ":material/scatter_plot:")
    return table


def draw_means(table: pd.DataFrame, title: ChartTitle) -> None:
    """Draw a map of the mean speedup of each implementation and length, with the verdicts behind it."""
    table = _of_one(table, "level", "Level", ("op",))
    level = level_of(str(table["level"].iloc[0]))
    length, by = level.columns, ["dtype", "implementation", level.columns.column]
    groups = table.groupby(by, dropna=False)
    rows = [_mean({level.rows.column: None, **dict(zip(by, key, strict=True))}, of) for key, of in groups]
    down = maps.MapAxis("implementation", "implementation", sorted(set(table["implementation"])), text.short)
    across = maps.MapAxis(length.column, length.label, sorted(table[length.column].dropna().unique()), text.size)
    title = replace(title, what=f"Mean speedup by {level.columns.label}")
    look = maps.speedups(rows, "the side before")
    maps.show(level, rows, look, "means_map", title.what, title=title, across=across, down=down)
    messages.say("mean_verdicts")


def _mean(place: dict[str, Any], rows: pd.DataFrame) -> dict[str, object]:
    """Return the cell of one implementation, dtype and length: its mean speedup and the numbers of its verdicts."""
    speedup, counts = geometric_mean(rows["speedup"].dropna()), rows["verdict"].value_counts()
    signs = "".join(dict.fromkeys(_SIGNS[verdict] for verdict in MEANINGS if verdict in counts))
    signs = signs.strip("=?") or signs[:1]
    said = [f"{count} {verdict.lower()}" for verdict, count in counts.items()]
    lines = [place["implementation"], *([f"{_fine(speedup)} on average"] if speedup else []), *said]
    return place | {
        "speedup": speedup,
        "shown": speedup,
        "label": f"{_fine(speedup)} {signs}" if speedup else "",
        "mark": cells.DOUBT if signs == "?" else None,
        "status": "ok" if speedup else counts.index[0],
        "failure": "no number",
        "hover": "<br>".join(map(html.escape, lines)),
    }


def title(found: Comparison, timing: str) -> ChartTitle:
    """Return the title of a picture of the comparison: timing, GPUs, runs and dates."""
    runs = [re.split("[/@]", side)[0] for side in (found.first, found.second)]
    known, days = ask(pages.runs).set_index("run_id")["gpu_name"], ask(pages.run_dates)
    names = dict.fromkeys(known[run] for run in runs if run in known.index)
    gpus = [name for name in names if not text.missing(name)]
    dates = " to ".join(dict.fromkeys(days[run] for run in runs if days.get(run)))
    return ChartTitle("Speedup by latency", (*gpus, text.TIMED[timing]), f"{found.first} to {found.second}, {dates}")


def remarks(found: Comparison) -> None:
    """Draw remarks on the whole comparison: differences of the machines as warnings, the rest as captions."""
    for remark in found.remarks:
        if remark.startswith(("Two different", "The machine differed", "No shape")):
            st.warning(text.plain(remark), icon=":material/warning:")
        else:
            st.caption(text.with_code(remark))


def what_changed(found: Comparison) -> None:
    """Draw the facts in which the two environments differ."""
    if found.same_run:
        st.caption("One run: one machine, one software, both sampled in the same interleaved rounds.")
        return
    if found.changes:
        said = [(fact_words(change.fact), stated(change.first), stated(change.second)) for change in found.changes]
        facts = pd.DataFrame(said, columns=["fact", "before", "after"])
        tables.grid(facts, "What differs between the runs")
    else:
        st.caption("Nothing that the runs record.")
    if found.not_said:
        st.caption(f"Not stated by either run: {', '.join(map(fact_words, found.not_said))}.")


def fact_words(fact: str) -> str:
    """Return the name of a fact of a run in words."""
    if fact.startswith("measured_tflops "):
        return f"Measured peak, {fact.removeprefix('measured_tflops ')} (TFLOP/s)"
    return _FACTS.get(fact, fact)


def outcome_of(cell: ComparedCell) -> str:
    """Return the verdict of a cell in the words of `MEANINGS`, with the reason of an unclear one."""
    doubt = cell.judgement.doubt if cell.judgement else None
    return f"{cell.outcome}: {doubt}" if doubt else cell.outcome


def cells_table(found: Comparison, voided: Mapping[str, str]) -> pd.DataFrame:
    """Return a row for each cell, regressions first; `speedup` is the judged ratio, in cycles if the clocks differ.

    `finding` is the sentence of `voided`, by measurement id, that voids one of the two numbers.
    """
    return pd.DataFrame([_row(cell, voided) for cell in found.cells], columns=text.WORDS["column_orders"]["verdicts"])


def _row(cell: ComparedCell, voided: Mapping[str, str]) -> dict[str, object]:
    judgement, case, level = cell.judgement, case_to_json(cell.case), levels.level_of(cell.case)
    flops = levels.flops(cell.case, cell.mode)
    return {
        "verdict": outcome_of(cell),
        "why": cell.reason,
        "finding": voided.get(cell.first.measurement_id) or voided.get(cell.second.measurement_id),
        "time": cell.time_ratio,
        "cycles": cell.cycles_ratio,
        "low": judgement.low if judgement else None,
        "high": judgement.high if judgement else None,
        "detectable": change(judgement.detectable) if judgement and judgement.detectable else None,
        "implementation": cell.implementation,
        "mode": cell.mode,
        "timing": cell.timing or AS_PUBLISHED,
        **{name: case[name] for name in ("dtype", "head_dim", "batch", "num_heads")},
        "seqlen": case[level.columns.field],
        "shape": f"B{case['batch'] or '?'} H{case['num_heads'] or '?'}",
        "mask": text.mask(cell.case.causal, cell.case.window_size),
        "level": level.name,
        "first_ms": cell.first.value,
        "second_ms": cell.second.value,
        "first_tflops": tflops(flops, cell.first.value),
        "second_tflops": tflops(flops, cell.second.value),
        "speedup": judgement.speedup if judgement else None,
    }


def speedup_chart(table: pd.DataFrame) -> charts.Chart:
    """Return the speedup of each cell by its latency before, both logarithmic, with its interval, by verdict."""
    found = []
    for verdict, (colour, symbol) in MARKS.items():
        rows = table[(table["verdict"] == verdict) & table["speedup"].notna()]
        if len(rows):
            errors = (rows["high"] - rows["speedup"]).fillna(0), (rows["speedup"] - rows["low"]).fillna(0)
            said = [_hover(row) for row in rows.to_dict("records")]
            look: dict[str, Any] = {"symbol": symbol, "size": 8, "errors": errors}
            found.append(
                charts.Series(f"{verdict} {len(rows)}", rows["first_ms"], rows["speedup"], colour, said, **look)
            )
    latency = charts.log_axis_at(table["first_ms"].min(), table["first_ms"].max(), charts.HALF_DECADES)
    ends = pd.concat([table["speedup"], table["low"], table["high"]]).dropna()
    if not ends.between(_FINE[0], _FINE[-1]).all():  # one wide interval would flatten the others
        ends = table["speedup"].dropna()
    near = ends.between(_FINE[0], _FINE[-1]).all()
    speedup = charts.log_axis_at(min(ends.min(), 1.0), max(ends.max(), 1.0), _FINE if near else _TWOS, "{:g}×".format)
    x, y = charts.titled("latency before (ms)"), charts.titled("speedup, before over after")
    return charts.Chart(found, latency | x, speedup | y, 400, band=(1 / (1 + BAND), 1 + BAND))


def show_cells(table: pd.DataFrame, sides: Sequence[str] = ("before", "after")) -> None:
    """Draw the cells of a comparison; `sides` are the names of the two sides."""
    one_pair = table["implementation"].str.contains(" -> ", regex=False).any()
    shown = table.drop(columns=[*_NOT_SHOWN, *["implementation"] * bool(one_pair)]).dropna(axis="columns", how="all")
    shown = shown.assign(mode=[text.MODE_WORDS.get(mode, mode) or "not stated" for mode in table["mode"]])
    first, second = sides
    config = tables.declared("verdicts")
    config["time"] = tables.number("time ratio", _RATIO, f"{first} over {second}")
    for at, name in (("first", first), ("second", second)):
        config |= {f"{at}_ms": tables.number(f"{name} (ms)"), f"{at}_tflops": tables.number(f"{name} (TFLOP/s)")}
    tables.grid(shown, "Verdict of every shape, regressions first", config)


def means_table(means: tuple[Mean, ...]) -> None:
    """Draw the geometric means by timing, implementation and mode, each with its coverage."""
    rows = [
        {
            "timing": mean.timing or AS_PUBLISHED,
            "implementation": mean.implementation or "all",
            "mode": text.MODE_WORDS.get(mean.mode or "", mean.mode) or "all",
            "speedup": mean.speedup,
            "compared": mean.compared,
            "tried": mean.tried,
            "verdicts": ", ".join(f"{count} {outcome.lower()}" for outcome, count in mean.outcomes.items()),
        }
        for mean in means
    ]
    config = tables.declared("mean_speedups")
    tables.grid(pd.DataFrame(rows), "Geometric means by timing, implementation and mode", config)
    st.caption("Geometric means of the shapes with a number on both sides; timings are never mixed.")


def change(share: float) -> str:
    """Write the smallest change that the samples could have shown: 3.3 %, or a factor above a doubling."""
    if share <= 1:
        return f"{100 * share:.1f} %"
    return f"cannot decide anything below {text.ratio(1 + share) if share < 9 else '10×'}"


def _hover(row: dict) -> str:
    where = f"{row['implementation']} {row['mode']}\nseqlen {text.size(row['seqlen'])}, head_dim {row['head_dim']}"
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{where}, {row['dtype']}\n{row['speedup']:.3f}×{interval} {row['verdict']}"


def _fine(speedup: float) -> str:
    """Write a ratio below 2 with three decimals."""
    return f"{speedup:.3f}×" if speedup < 2 else text.ratio(speedup)


def draw_map(first: str, second: str, table: pd.DataFrame, title: ChartTitle) -> None:
    """Ask for one mode, mask and shape of a comparison; draw their map."""
    with st.container(horizontal=True):
        for column, label, order in _CHOICES:
            table = _of_one(table, column, label, order)
    level = level_of(str(table["level"].iloc[0]))
    if table.duplicated(["dtype", "seqlen", level.rows.field]).any():  # several shapes would share a place on the map
        table = _of_one(table, "shape", "Batch and heads", ())
    places = table.drop_duplicates(["dtype", "seqlen", level.rows.field])
    rows = [row | _drawn(row) for row in places.to_dict("records")]
    about = [text.MODE_WORDS.get(table["mode"].iloc[0], ""), f"{table['mask'].iloc[0]} mask", *title.about]
    what = f"Speedup of {second} over {first}"
    title = replace(title, what=what, about=tuple(filter(None, about)))
    alt = f"{what} by {level.columns.label} and {level.rows.label}, with verdicts"
    maps.show(level, rows, maps.speedups(rows, first), "versus_map", alt, title=title)
    st.caption(f"{text.plain(what)}. ▲ faster, ▼ slower, = equal within 2 %, ? undecided.")


def _of_one(table: pd.DataFrame, column: str, label: str, order: Sequence[str]) -> pd.DataFrame:
    """Return the rows of one value of a column; ask for it if there are several, in the given order."""
    values = table[column].fillna("not stated").astype(str)
    names = sorted(values.unique(), key=lambda name: (order.index(name) if name in order else len(order), name))
    words = {name: text.MODE_WORDS.get(name, name) for name in names}
    chosen = select.one_of_several(label, f"versus_{column}", names, format_func=words.get)
    return table[values == chosen]


def _drawn(row: dict) -> dict[str, object]:
    known = not text.missing(row["speedup"])
    failed = "not measured" if known else "no number"
    interval = "" if text.missing(row["low"]) else f" (90 % interval {row['low']:.3f} to {row['high']:.3f})"
    ratio = f"{text.ratio(row['speedup'])}{interval}<br>" if known else ""
    return {
        "shown": row["speedup"] if known else None,
        "label": f"{text.ratio(row['speedup'])} {_SIGNS[row['verdict']]}" if known else "",
        "mark": cells.DOUBT if row["verdict"] in UNCLEAR else None,
        "status": "ok" if known else row["verdict"],
        "failure": failed,
        "hover": f"{ratio}{row['verdict']}: {row['why']}",
    }
