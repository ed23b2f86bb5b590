"""A comparison on the page: what changed, the verdicts, the means, each cell."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.draw import text
from results.compare.compare import ORDER, Comparison, Mean
from results.compare.verdicts import BAND
from results.derive import attention_flops, tflops
from results.records import case_to_json
from results.slice import AS_PUBLISHED

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
    """How many cells got which verdict, and the mean of each timing with its coverage."""
    counts = {outcome: sum(cell.outcome == outcome for cell in found.cells) for outcome in ORDER}
    parts = [f"{counts[outcome]} {outcome.lower()}" for outcome in ORDER if counts[outcome]]
    st.markdown(f"#### {', '.join(parts) or 'No shared cell'}" + (f", of {len(found.cells)} cells" if parts else ""))
    overall = [mean for mean in found.means if mean.implementation is None and mean.mode is None]
    for mean in overall:
        if mean.speedup:
            timing = text.TIMING_WORDS.get(mean.timing or "as published", mean.timing)
            seen = f"; half of them could have shown a change of {mean.detectable:.1%}" if mean.detectable else ""
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
    """The facts of the two environments that differ."""
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
    """A row a cell, regressions first."""
    rows = []
    for cell in found.cells:
        judgement, case = cell.judgement, case_to_json(cell.case)
        flops = attention_flops(case, cell.mode)
        window = f" window {cell.case.window_size}" if cell.case.window_size else ""
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
                "seqlen": case["seqlen_q"],
                "shape": f"B{case['batch'] or '?'} H{case['num_heads'] or '?'}",
                "mask": "not said"
                if cell.case.causal is None
                else f"{'causal' if cell.case.causal else 'full'}{window}",
                "first_ms": cell.first.value,
                "second_ms": cell.second.value,
                "first_tflops": tflops(flops, cell.first.value),
                "second_tflops": tflops(flops, cell.second.value),
                "why": cell.reason,
            }
        )
    return pd.DataFrame(rows, columns=[*CELL_COLUMNS])


def show_cells(table: pd.DataFrame) -> None:
    """The cells with those verdicts that the reader wants."""
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
    """The geometric means by timing, implementation and mode, each with its coverage."""
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


def _said(value: object) -> str:
    return "not said" if value is None else str(value)


def _fine(speedup: float) -> str:
    """Three decimals where they tell two runs apart."""
    return f"{speedup:.3f}×" if speedup < 2 else text.ratio(speedup)
