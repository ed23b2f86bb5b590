"""The answer over a slice: who is fastest, how sure that is, what failed."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, messages
from pages.ui.draw import html as facts
from pages.ui.draw import html as tables
from pages.ui.draw import text as words
from pages.ui.draw.html import Column, Fact
from results.precision import is_other, is_tf32
from results.query.pages import Filters
from results.recommend import winners
from results.store.database import Store

COLUMNS = {
    "implementation": Column("implementation"),
    "precision": Column("precision", help="Where it is not that of the inputs' dtype", text=True),
    "speedup": Column("speedup", words.ratio, "Geometric mean of the cases"),
    "lowest": Column("lowest", words.ratio),
    "highest": Column("highest", words.ratio),
    "compared": Column("compared", help="Cases with a speed of it and of the baseline"),
    "cases": Column("of cases"),
    "failures": Column("no number", text=True),
    "longest": Column("longest", lambda seqlen: f"{seqlen:,.0f}", "Longest seqlen that ran"),
    "peak_memory_mb": Column("peak memory", words.mib, "Largest of the slice"),
}

WINNER_COLUMNS = (
    *("dtype", "seqlen", "head_dim", "winner", "latency_ms", "p20", "p80", "n", "speedup", "ties", "rivals", "failed"),
    "cases",
)
_SHOWN = 4  # rivals named when the pointer is on a cell


def headline(ranking: Sequence[dict], won: Sequence[dict], chosen: Filters) -> None:
    """The answer in one sentence and four numbers."""
    rivals = rivals_of(ranking, chosen)
    best = best_of(rivals)
    if best is None:
        st.markdown(f"#### Nothing here can be compared with {words.plain(chosen.baseline)}")
    else:
        verb = "is fastest" if best["speedup"] > 1 else "comes closest"
        name, baseline = words.plain(best["implementation"]), words.plain(chosen.baseline)
        st.markdown(
            f"#### {name} {verb}: {words.ratio(best['speedup'])} {baseline}, "
            f"geometric mean of {best['compared']} of {best['cases']} cases"
        )
    wins = 0 if best is None else sum(row["winner"] == best["implementation"] for row in won)
    ties = 0 if best is None else sum(best["implementation"] in row["ties"].split(", ") for row in won)
    compared, cases, failures = (
        _sum(rows, name) for rows, name in ((rivals, "compared"), (rivals, "cases"), (ranking, "failures"))
    )
    kinds = failure_words({name: _sum(ranking, name) for name in words.STATUS_WORDS if name in ranking[0]})
    facts.show_facts(
        (
            Fact(
                "Best speedup",
                "none" if best is None else words.ratio(best["speedup"]),
                "" if best is None else f"{words.ratio(best['lowest'])} to {words.ratio(best['highest'])}",
                "Highest geometric mean over the baseline, of those compared in nine tenths as many cases as any; TF32 "
                "and FP8 variants are listed, but are not compared with those that compute in the dtype itself.",
            ),
            Fact("Cells it wins", f"{wins} of {len(won)}", f"ties in {ties} more", "Cells of the map below."),
            Fact(
                "Compared",
                f"{compared} of {cases}",
                messages.counted(len(rivals), "implementation"),
                f"A case and an implementation with a speed of both it and {chosen.baseline}, in the same run.",
            ),
            Fact("Failures", str(failures), kinds or "none", "Planned cases without a number."),
        )
    )


def judged(store: Store, chosen: Filters) -> list[dict]:
    """Winners with what the map draws, and in each cell how far behind the others are."""
    won = cells.winner_cells(winners.winners(store, chosen)).to_dict("records")
    for row in won:
        row["hover"] += "".join(f"<br>{html.escape(text)}" for text in list(row["rivals"])[:_SHOWN])
    return won


def winners_csv(won: Sequence[dict]) -> pd.DataFrame:
    """The winner map as a table: the winner's median with p20 to p80 and n, who ties, how far behind the others are."""
    listed = ({name: ", ".join(row[name]) for name in ("rivals", "failed")} for row in won)
    return pd.DataFrame([row | texts for row, texts in zip(won, listed, strict=True)])[[*WINNER_COLUMNS]]


def winners_table(won: Sequence[dict]) -> None:
    """The same on the page."""
    shown = winners_csv(won)
    shown["winner"] = shown["winner"].fillna("none")
    config = {
        "ties": st.column_config.TextColumn("no clear difference", width="medium"),
        "rivals": st.column_config.TextColumn("the others, with 90 % intervals", width="large"),
        "failed": st.column_config.TextColumn("no number", width="medium"),
    }
    st.dataframe(
        shown, hide_index=True, alt="Fastest implementation of every cell", column_config=cells.NUMBERS | config
    )


def tie_words(won: Sequence[dict]) -> str:
    """What a tie is in this slice."""
    judged_by = "no verdict tells them apart: the 90 % interval of their ratio reaches into ±2 %"
    if all(row["by_spread"] for row in won):
        return judged_by
    return f"{judged_by}, or within 2 % where the source prints no spread"


def rivals_of(ranking: Sequence[dict], chosen: Filters) -> list[dict]:
    """All but the baseline, the best first."""
    return [row for row in ranking if row["implementation"] != chosen.baseline]


def best_of(rivals: Sequence[dict]) -> dict | None:
    """The highest geometric mean of those that cover nearly what any covers, if there is one.

    Means over different cases are not comparable, and TF32 and FP8 are other precisions than their baseline's.
    """
    enough = max(1, 0.9 * max((row["compared"] for row in rivals), default=0))
    return next((row for row in rivals if not row["other_precision"] and row["compared"] >= enough), None)


def ranking_table(ranking: Sequence[dict], fits: pd.DataFrame) -> None:
    """Every implementation in a row: precision, speedup, coverage, failures, how far it goes, what memory that took."""
    peaks = dict(zip(fits["implementation"], fits["peak_memory_mb"], strict=True))
    rows = [
        row
        | {
            "precision": reduced(row["implementation"]),
            "failures": failure_words(row),
            "peak_memory_mb": peaks.get(row["implementation"]),
        }
        for row in ranking
    ]
    tables.show_table(rows, COLUMNS, "Every implementation with its speedup, coverage, failures and memory")


def reduced(implementation: str) -> str | None:
    """Of an implementation that computes in another precision than the dtype it is listed under: which."""
    if not is_other(implementation):
        return None
    return f"{'TF32' if is_tf32(implementation) else 'FP8'}, reduced"


def failure_words(counts: Mapping[str, object]) -> str:
    """OOM 3, unsupported 2; empty if nothing failed."""
    names = [name for name in words.STATUS_WORDS if name not in ("ok", None) and name in counts]
    return ", ".join(f"{words.status(name)} {counts[name]}" for name in names if counts[name] > 0)


def _sum(rows: Sequence[dict], name: str) -> int:
    return sum(row[name] for row in rows)
