"""A comparison on the page: the verdicts as a line and a chart, what they rest on, each shape, the means."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import charts, text
from pages.ui.draw.titles import ChartTitle
from pages.ui.shell.data import ask
from results import levels
from results.compare.compare import ComparedCell, Comparison, Mean
from results.compare.verdicts import BAND, Doubt
from results.derive import tflops
from results.query import pages
from results.records import case_to_json
from results.render.terminal import coverage_words
from results.slice import AS_PUBLISHED

NOISY, BY_CLOCK = (f"UNCLEAR: {doubt}" for doubt in (Doubt.NOISE, Doubt.CLOCK))
# Okabe and Ito's, apart for every colour vision; the symbol says the same again
MARKS = {
    "SLOWER": ("#d55e00", "triangle-down"),
    NOISY: ("#8a8f98", "circle-open"),
    BY_CLOCK: ("#8a8f98", "diamond-open"),
    "FASTER": ("#0072b2", "triangle-up"),
    "SAME": ("#009e73", "circle"),
}
_TENS = [m * 10.0**power for power in range(-4, 6) for m in (1, 3)]
_TWOS = [2.0**power for power in range(-10, 11)]
_FINE = [0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7]
MEANINGS = {
    "LOST": "had a number before, has none now",
    "SLOWER": "slower by more than 2 %",
    NOISY: "too noisy to decide",
    BY_CLOCK: "the SM clock, not the code, explains the difference",
    "FASTER": "faster by more than 2 %",
    "GAINED": "had no number before, has one now",
    "SAME": "equal within 2 %",
}
RULE = (
    f"Above 1× the second is faster. FASTER or SLOWER: the whole 90 % interval is beyond ±{100 * BAND:.0f} %, in time "
    "too, and the 99 % interval excludes 1×. SAME: all of it is within ±2 %."
)
HELP = (
    "The 90 % interval is the wider of two: by the medians of both sides, and by how much rounds of samples differ; "
    "between two runs it includes what the processes differ by. Device times at different SM clocks are compared in "
    "cycles, and a difference in cycles must show in time too: work bound by memory does not follow the clock. "
    "Only the same shape, mode and timing are compared. "
    + " ".join(f"{outcome}: {meaning}." for outcome, meaning in MEANINGS.items())
)
_FACTS = {
    "gpu_name": "GPU",
    "gpu_uuid": "GPU card",
    "device_type": "Device",
    "sm_count": "SMs",
    "gpu_memory_mb": "GPU memory (MiB)",
    "power_limit_w": "Power limit (W)",
    "cpu": "CPU",
    "host": "Host",
    "driver": "Driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "torch": "PyTorch",
    "triton": "Triton",
    "python": "Python",
    "os": "Operating system",
    "kernel_hash": "Hash of the kernels",
    "git_commit": "Commit",
    "git_dirty": "Uncommitted changes",
    "tf32": "TF32",
    "protocol": "Measuring protocol",
    "seed": "Seed",
    "sm_clock_mhz, median": "SM clock, median (MHz)",
    "measured_gbs": "Measured bandwidth (GB/s)",
}
CELL_COLUMNS = (
    *(
        "verdict",
        "why",
        "finding",
        "time",
        "cycles",
        "low",
        "high",
        "detectable",
        "implementation",
        "mode",
        "timing",
        "dtype",
    ),
    *("seqlen", "head_dim", "batch", "num_heads", "shape", "mask", "level", "first_ms", "second_ms"),
    *("first_tflops", "second_tflops", "speedup"),
)
_NOT_SHOWN = ["speedup", "batch", "num_heads", "level", "timing"]  # drawn elsewhere, or one value
_RATIO = {"format": "%.3f×"}


def headline(found: Comparison, timing: str) -> None:
    """Say in one line how many shapes of a timing got which verdict, and their mean."""
    cells = [cell for cell in found.cells if (cell.timing or AS_PUBLISHED) == timing]
    counts = Counter(map(outcome_of, cells))
    parts = [
        f"{counts[outcome]} {outcome.lower().replace(': ', ' (') + ')' * (':' in outcome)}"
        for outcome in MEANINGS
        if counts[outcome]
    ]
    means = [mean.speedup for mean in _overall(found) if (mean.timing or AS_PUBLISHED) == timing and mean.speedup]
    average = f" · {_fine(means[0])} on average" if means else ""
    words = f"{', '.join(parts)}, of {len(cells)} shapes{average}" if parts else "No shared shape"
    st.markdown(f"#### {words}", help=HELP)


def title(found: Comparison, timing: str) -> ChartTitle:
    """Return what a picture of the comparison says of itself: timing, GPUs, runs and dates."""
    runs = [re.split("[/@]", side)[0] for side in (found.first, found.second)]
    known = ask(pages.runs).set_index("run_id")["gpu_name"]
    names = dict.fromkeys(known[run] for run in runs if run in known.index)
    gpus = [name for name in names if not text.missing(name)]
    when = {"kernel": "kernel time", "eager": "eager time"}.get(timing, "time as published")
    return ChartTitle("Speedup by latency", (*gpus, when), f"{found.first} to {found.second}, {of_dates(runs)}")


def of_dates(runs: Sequence[str]) -> str:
    """Return when some runs were made, each day once."""
    known = ask(pages.run_dates)
    return " to ".join(dict.fromkeys(known[run] for run in runs if known.get(run)))


def coverage(found: Comparison, timing: str) -> None:
    """Say under the picture what was compared, so that the numbers add up, and what the samples could have shown."""
    known = [coverage_words(each) for each in found.coverage if (each.timing or AS_PUBLISHED) == timing]
    seen = [mean.detectable for mean in _overall(found) if (mean.timing or AS_PUBLISHED) == timing and mean.detectable]
    smallest = f" Median smallest detectable change: {change(seen[0])}." if seen else ""
    st.caption(f"{' '.join(known)}{smallest}")


def remarks(found: Comparison) -> None:
    """Draw what to know of the comparison as a whole: where the machines differ as a warning, the rest below it."""
    for remark in found.remarks:
        if remark.startswith(("Two different", "The machine differed", "No shape")):
            st.warning(text.plain(remark), icon=":material/warning:")
        else:
            st.caption(text.plain(remark))


def what_changed(found: Comparison) -> None:
    """Draw the facts in which the two environments differ."""
    if found.same_run:
        st.caption("One run: one machine, one software, both sampled in the same interleaved rounds.")
        return
    if found.changes:
        said = [(fact_words(change.fact), _said(change.first), _said(change.second)) for change in found.changes]
        st.dataframe(
            pd.DataFrame(said, columns=["fact", "before", "after"]),
            hide_index=True,
            placeholder="–",
            alt="What differs between the runs",
        )
    else:
        st.caption("Nothing that the runs record.")
    if found.not_said:
        st.caption(f"Not stated by either run: {', '.join(map(fact_words, found.not_said))}.")


def fact_words(fact: str) -> str:
    """Return the name of a fact of a run for people."""
    if fact.startswith("measured_tflops "):
        return f"Measured peak, {fact.removeprefix('measured_tflops ')} (TFLOP/s)"
    return _FACTS.get(fact, fact)


def outcome_of(cell: ComparedCell) -> str:
    """Return the verdict of a cell in the words of `MEANINGS`: an unclear one with its reason."""
    doubt = cell.judgement.doubt if cell.judgement else None
    return f"{cell.outcome}: {doubt}" if doubt else cell.outcome


def cells_table(found: Comparison, voided: Mapping[str, str]) -> pd.DataFrame:
    """Return a row a cell, regressions first; `speedup` is the ratio that was judged, in cycles where clocks differ.

    `finding` is what voids one of its numbers, of which `voided` holds the sentences by measurement id.
    """
    rows = [_row(cell) | {"finding": _voided(cell, voided)} for cell in found.cells]
    return pd.DataFrame(rows, columns=[*CELL_COLUMNS])


def _voided(cell: ComparedCell, voided: Mapping[str, str]) -> str | None:
    return voided.get(cell.first.measurement_id) or voided.get(cell.second.measurement_id)


def _row(cell: ComparedCell) -> dict[str, object]:
    judgement, case, level = cell.judgement, case_to_json(cell.case), levels.level_of(cell.case)
    flops = levels.flops(cell.case, cell.mode)
    return {
        "verdict": outcome_of(cell),
        "why": cell.reason,
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


def speedup_chart(table: pd.DataFrame) -> go.Figure:
    """Return the speedup of each cell over its latency before, both logarithmic, with its interval, by verdict."""
    figure = go.Figure()
    for verdict, (colour, symbol) in MARKS.items():
        rows = table[(table["verdict"] == verdict) & table["speedup"].notna()]
        if rows.empty:
            continue
        figure.add_scatter(
            x=rows["first_ms"],
            y=rows["speedup"],
            name=f"{verdict} {len(rows)}",
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 8},
            error_y={
                "array": (rows["high"] - rows["speedup"]).fillna(0),
                "arrayminus": (rows["speedup"] - rows["low"]).fillna(0),
                "thickness": 1,
                "width": 0,
                "color": colour,
            },
            customdata=[_hover(row) for row in rows.to_dict("records")],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.add_hrect(y0=1 / (1 + BAND), y1=1 + BAND, fillcolor=charts.EMPTY_COLOUR, opacity=0.2, line_width=0)
    latency = charts.log_axis_at(table["first_ms"].min(), table["first_ms"].max(), _TENS, "{:g}".format)
    ends = pd.concat([table["speedup"], table["low"], table["high"]]).dropna()
    if not ends.between(_FINE[0], _FINE[-1]).all():  # one wide interval would flatten the others
        ends = table["speedup"].dropna()
    near = ends.between(_FINE[0], _FINE[-1]).all()
    speedup = charts.log_axis_at(min(ends.min(), 1.0), max(ends.max(), 1.0), _FINE if near else _TWOS, "{:g}×".format)
    figure.update_xaxes(title="latency before (ms)", **latency)
    figure.update_yaxes(title="speedup, before over after", **speedup)
    return figure.update_layout(height=400, margin=charts.MARGIN, legend=charts.LEGEND, hovermode="closest")


def show_cells(table: pd.DataFrame, sides: Sequence[str] = ("before", "after")) -> None:
    """Draw the cells with those verdicts that the reader wants; `sides` are the names of the two."""
    one_pair = table["implementation"].str.contains(" -> ", regex=False).any()
    shown = table.drop(columns=[*_NOT_SHOWN, *["implementation"] * bool(one_pair)]).dropna(axis="columns", how="all")
    shown = shown.assign(
        mode=[text.MODE_WORDS.get(mode, mode) or "not stated" for mode in table["mode"]],
    )
    first, second = sides
    st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        alt="Verdict of every shape, regressions first",
        column_config={
            "verdict": st.column_config.TextColumn("verdict", pinned=True),
            "why": st.column_config.TextColumn("why", width=330),
            "finding": st.column_config.TextColumn(
                "finding", width="medium", help="What the checks say against one of the two numbers"
            ),
            "time": st.column_config.NumberColumn("time ratio", help=f"{first} over {second}", **_RATIO),
            "cycles": st.column_config.NumberColumn(
                "cycles ratio", help="Judged instead of time where the SM clocks differ", **_RATIO
            ),
            "low": st.column_config.NumberColumn("90 % from", help="Of the ratio that is judged", **_RATIO),
            "high": st.column_config.NumberColumn("to", help="Of the ratio that is judged", **_RATIO),
            "detectable": st.column_config.TextColumn(
                "detectable", help="The smallest change that these samples could have shown"
            ),
            "implementation": st.column_config.TextColumn("implementation", width="medium"),
            "first_ms": st.column_config.NumberColumn(f"{first} (ms)", format="%.3g"),
            "second_ms": st.column_config.NumberColumn(f"{second} (ms)", format="%.3g"),
            "first_tflops": st.column_config.NumberColumn(f"{first} (TFLOP/s)", format="%.3g"),
            "second_tflops": st.column_config.NumberColumn(f"{second} (TFLOP/s)", format="%.3g"),
            "shape": st.column_config.TextColumn("batch, heads"),
        },
    )


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
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        placeholder="–",
        alt="Geometric means by timing, implementation and mode",
        column_config={
            "speedup": st.column_config.NumberColumn("mean speedup", **_RATIO),
            "compared": st.column_config.NumberColumn("compared", help="Shapes with a number on both sides"),
            "tried": st.column_config.NumberColumn("tried", help="Shapes that either side has tried"),
            "verdicts": st.column_config.TextColumn("verdicts", width="large"),
        },
    )


def change(share: float) -> str:
    """Write the smallest change that could have been seen: 3.3 %, or from which factor on beyond a doubling."""
    if share <= 1:
        return f"{100 * share:.1f} %"
    return f"cannot decide anything below {text.ratio(1 + share) if share < 9 else '10×'}"


def _overall(found: Comparison) -> list[Mean]:
    return [mean for mean in found.means if mean.implementation is None and mean.mode is None]


def _hover(row: dict) -> str:
    where = f"{row['implementation']} {row['mode']}<br>seqlen {text.size(row['seqlen'])}, head_dim {row['head_dim']}"
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{where}, {row['dtype']}<br>{row['speedup']:.3f}×{interval} {row['verdict']}"


def _said(value: object) -> str:
    return "not stated" if value is None else str(value)


def _fine(speedup: float) -> str:
    """Write a ratio with three decimals where they tell two runs apart."""
    return f"{speedup:.3f}×" if speedup < 2 else text.ratio(speedup)
