"""A comparison on the page: what changed, the verdicts, the means, each cell."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import charts, text
from results import levels
from results.compare.compare import ORDER, Comparison, Mean
from results.compare.verdicts import BAND
from results.derive import tflops
from results.records import case_to_json
from results.slice import AS_PUBLISHED

# Okabe and Ito's, apart for every colour vision; the symbol says the same again
_MARKS = {
    "SLOWER": ("#d55e00", "triangle-down"),
    "UNCLEAR": ("#8a8f98", "circle-open"),
    "FASTER": ("#0072b2", "triangle-up"),
    "SAME": ("#009e73", "circle"),
}
_TENS = [m * 10.0**power for power in range(-4, 6) for m in (1, 3)]
_TWOS = [2.0**power for power in range(-10, 11)]
_FINE = [0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7]
MEANINGS = {
    "LOST": "had a number, has none",
    "SLOWER": "slower by more than the band",
    "UNCLEAR": "the spread does not say",
    "FASTER": "faster by more than the band",
    "GAINED": "had no number, has one",
    "SAME": "within the band",
}
CELL_COLUMNS = (
    *("verdict", "speedup", "low", "high", "detectable", "implementation", "mode", "timing", "dtype", "seqlen"),
    *("head_dim", "shape", "mask", "first_ms", "second_ms", "first_tflops", "second_tflops", "why"),
)
_RATIO = {"format": "%.3f×"}


def headline(found: Comparison) -> None:
    """Say how many cells got which verdict, and the mean of each timing with its coverage."""
    counts = {outcome: sum(cell.outcome == outcome for cell in found.cells) for outcome in ORDER}
    parts = [f"{counts[outcome]} {outcome.lower()}" for outcome in ORDER if counts[outcome]]
    st.markdown(f"#### {', '.join(parts) or 'No shared cell'}" + (f", of {len(found.cells)} cells" if parts else ""))
    overall = [mean for mean in found.means if mean.implementation is None and mean.mode is None]
    for mean in overall:
        if mean.speedup:
            timing = text.TIMING_WORDS.get(mean.timing or "as published", mean.timing)
            seen = f"; median smallest detectable change: {_change(mean.detectable)}" if mean.detectable else ""
            st.markdown(
                f"**{_fine(mean.speedup)}** in {timing}: geometric mean of {mean.compared} of {mean.tried} cells "
                f"that either side has tried{seen}."
            )
    st.caption(
        "Above 1× the second is faster. A verdict needs all of the interval, each end with 95 % certainty, beyond "
        f"the band of {BAND:.0%}, or inside it for SAME. Only the same case, mode and timing are compared. "
        f"Tried by the first alone: {found.only_first} cells; by the second alone: {found.only_second}."
    )
    for remark in found.remarks:
        st.caption(remark)


def what_changed(found: Comparison) -> None:
    """Draw the facts in which the two environments differ."""
    if found.same_run:
        st.caption("One run: one machine, one software, both sampled in the same interleaved rounds.")
        return
    if found.changes:
        said = [(change.fact, _said(change.first), _said(change.second)) for change in found.changes]
        st.dataframe(
            pd.DataFrame(said, columns=["fact", "before", "after"]),
            hide_index=True,
            alt="What differs between the runs",
        )
    else:
        st.caption("Nothing that the runs record.")
    if found.not_said:
        st.caption(f"Neither run says: {', '.join(found.not_said)}.")


def cells_table(found: Comparison) -> pd.DataFrame:
    """Return a row a cell, regressions first."""
    rows = []
    for cell in found.cells:
        judgement, case = cell.judgement, case_to_json(cell.case)
        flops = levels.flops(cell.case, cell.mode)
        rows.append(
            {
                "verdict": cell.outcome,
                "speedup": judgement.speedup if judgement else None,
                "low": judgement.low if judgement else None,
                "high": judgement.high if judgement else None,
                "detectable": 100 * judgement.detectable if judgement and judgement.detectable else None,
                "implementation": cell.implementation,
                "mode": cell.mode,
                "timing": cell.timing or AS_PUBLISHED,
                **{name: case[name] for name in ("dtype", "head_dim")},
                "seqlen": case[levels.level_of(cell.case).columns.field],
                "shape": f"B{case['batch'] or '?'} H{case['num_heads'] or '?'}",
                "mask": text.mask(cell.case.causal, cell.case.window_size),
                "first_ms": cell.first.value,
                "second_ms": cell.second.value,
                "first_tflops": tflops(flops, cell.first.value),
                "second_tflops": tflops(flops, cell.second.value),
                "why": cell.reason,
            }
        )
    return pd.DataFrame(rows, columns=[*CELL_COLUMNS])


def speedup_chart(table: pd.DataFrame) -> go.Figure:
    """Return the speedup of each cell over its latency before, both logarithmic, with its interval, by verdict."""
    figure = go.Figure()
    for verdict, (colour, symbol) in _MARKS.items():
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
    near = table["speedup"].between(0.6, 1.7).all()
    low, high = min(table["speedup"].min(), 1.0), max(table["speedup"].max(), 1.0)
    speedup = charts.log_axis_at(low, high, _FINE if near else _TWOS, "{:g}×".format)
    figure.update_xaxes(title="latency of the first (ms)", **latency)
    figure.update_yaxes(title="speedup", **speedup)
    return figure.update_layout(height=400, margin=charts.MARGIN, legend=charts.LEGEND, hovermode="closest")


def show_cells(table: pd.DataFrame) -> None:
    """Draw the cells with those verdicts that the reader wants."""
    st.dataframe(
        table.dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Verdict of every cell, regressions first",
        column_config={
            "verdict": st.column_config.TextColumn("verdict", pinned=True),
            "speedup": st.column_config.NumberColumn("speedup", **_RATIO),
            "low": st.column_config.NumberColumn("at least", help="With 95 % certainty", **_RATIO),
            "high": st.column_config.NumberColumn("at most", help="With 95 % certainty", **_RATIO),
            "detectable": st.column_config.NumberColumn(
                "seen from", format="%.1f %%", help="The smallest change that these samples could have shown"
            ),
            "implementation": st.column_config.TextColumn("implementation", width="medium"),
            "first_ms": st.column_config.NumberColumn("first (ms)", format="%.4g"),
            "second_ms": st.column_config.NumberColumn("second (ms)", format="%.4g"),
            "first_tflops": st.column_config.NumberColumn("first (TFLOP/s)", format="%.1f"),
            "second_tflops": st.column_config.NumberColumn("second (TFLOP/s)", format="%.1f"),
            "why": st.column_config.TextColumn("why", width="large"),
        },
    )


def means_table(means: tuple[Mean, ...]) -> None:
    """Draw the geometric means by timing, implementation and mode, each with its coverage."""
    rows = [
        {
            "timing": mean.timing or AS_PUBLISHED,
            "implementation": mean.implementation or "all",
            "mode": mean.mode or "all",
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
        alt="Geometric means by timing, implementation and mode",
        column_config={
            "speedup": st.column_config.NumberColumn("speedup", **_RATIO),
            "compared": st.column_config.NumberColumn("compared", help="Cells with a number on both sides"),
            "tried": st.column_config.NumberColumn("of tried", help="Cells that either side has tried"),
            "verdicts": st.column_config.TextColumn("verdicts", width="large"),
        },
    )


def _hover(row: dict) -> str:
    where = f"{row['implementation']} {row['mode']}<br>seqlen {text.size(row['seqlen'])}, head_dim {row['head_dim']}"
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{where}, {row['dtype']}<br>{row['speedup']:.3f}×{interval} {row['verdict']}"


def _said(value: object) -> str:
    return "not said" if value is None else str(value)


def _fine(speedup: float) -> str:
    """Write a ratio with three decimals where they tell two runs apart."""
    return f"{speedup:.3f}×" if speedup < 2 else text.ratio(speedup)


def _change(share: float) -> str:
    """Write the smallest change that could have been seen: 3.3 %, or as a factor where it is beyond a doubling."""
    return f"{share:.1%}" if share <= 1 else f"nothing below {text.ratio(1 + share)}"
