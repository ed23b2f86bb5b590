"""The answer over a slice: who is fastest, how sure that is, what failed."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, messages, plain_html, text
from pages.ui.draw.plain_html import Fact, TableColumn
from pages.ui.shell.data import store
from results.levels import Level
from results.recommend import winners
from results.render import slice
from results.render.html import html_page
from results.slice import Filters, level_in
from results.store.database import Store

COLUMNS = {
    "implementation": TableColumn("implementation"),
    "precision": TableColumn("precision", help="Where it is not that of the inputs' dtype", text=True),
    "speedup": TableColumn("speedup", text.ratio, "Geometric mean of the cases"),
    "lowest": TableColumn("lowest", text.ratio),
    "highest": TableColumn("highest", text.ratio),
    "compared": TableColumn("compared", help="Cases with a speed of it and of the baseline"),
    "cases": TableColumn("of cases"),
    "failures": TableColumn("no number", text=True),
    "longest": TableColumn("longest", lambda seqlen: f"{seqlen:,.0f}", "Longest seqlen that ran"),
    "peak_memory_mb": TableColumn("peak memory", text.mib, "Largest of the slice"),
}

WINNER_COLUMNS = (
    *("winner", "latency_ms", "p20", "p80", "n", "speedup", "ties", "rivals", "failed"),
    "cases",
)
_SHOWN = 4  # rivals named when the pointer is on a cell


def headline(ranking: Sequence[dict], won: Sequence[dict], chosen: Filters) -> None:
    """Draw the answer in one sentence and four numbers."""
    rivals = rivals_of(ranking, chosen)
    best = best_of(rivals)
    if best is None:
        st.markdown(f"#### Nothing here can be compared with {text.plain(chosen.baseline)}")
    else:
        verb = "is fastest" if best["speedup"] > 1 else "comes closest"
        name, baseline = text.plain(best["implementation"]), text.plain(chosen.baseline)
        st.markdown(
            f"#### {name} {verb}: {text.ratio(best['speedup'])} {baseline}, "
            f"geometric mean of {best['compared']} of {best['cases']} cases"
        )
        st.caption(f"On {text.slice_words(chosen)}.")
    wins = 0 if best is None else sum(row["winner"] == best["implementation"] for row in won)
    ties = 0 if best is None else sum(best["implementation"] in row["ties"].split(", ") for row in won)
    compared, cases, failures = (
        _sum(rows, name) for rows, name in ((rivals, "compared"), (rivals, "cases"), (ranking, "failures"))
    )
    kinds = failure_words({name: _sum(ranking, name) for name in text.STATUS_WORDS if name in ranking[0]})
    plain_html.show_facts(
        (
            Fact(
                "Best speedup",
                "none" if best is None else text.ratio(best["speedup"]),
                "" if best is None else f"{text.ratio(best['lowest'])} to {text.ratio(best['highest'])}",
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
    """Return winners with what the map draws, and in each cell how far behind the others are."""
    won = cells.winner_cells(level_in(chosen), winners.winners(store, chosen)).to_dict("records")
    for row in won:
        row["hover"] += "".join(f"<br>{html.escape(rival)}" for rival in list(row["rivals"])[:_SHOWN])
    return won


def winners_csv(level: Level, won: Sequence[dict]) -> pd.DataFrame:
    """Return the winner map as a table: the winner's median, p20, p80 and n, who ties, how far the others are."""
    listed = ({name: ", ".join(row[name]) for name in ("rivals", "failed")} for row in won)
    return pd.DataFrame([row | texts for row, texts in zip(won, listed, strict=True)])[
        [*cells.place_columns(level), *WINNER_COLUMNS]
    ]


def winners_table(level: Level, won: Sequence[dict]) -> None:
    """Draw the winner map as a table."""
    shown = winners_csv(level, won)
    shown["winner"] = shown["winner"].fillna("none")
    config = {
        "ties": st.column_config.TextColumn("equally fast", width="medium"),
        "rivals": st.column_config.TextColumn("the others, with 90 % intervals", width="large"),
        "failed": st.column_config.TextColumn("no number", width="medium"),
    }
    st.dataframe(
        shown,
        hide_index=True,
        alt="Fastest implementation of every cell",
        column_config=cells.NUMBERS | cells.axis_columns(level) | config,
    )


def tie_words(won: Sequence[dict]) -> str:
    """Say what a tie is in this slice."""
    judged_by = "the 90 % interval of their ratio reaches into ±2 %"
    if all(row["by_spread"] for row in won):
        return judged_by
    return f"{judged_by}, or within 2 % where the source prints no spread"


def view_downloads(chosen: Filters) -> None:
    """Offer the slice for reading, as Markdown and as one HTML file, as `python -m results render` writes it."""
    made = {"Markdown": ("md", "text/markdown", lambda text: text), "HTML": ("html", "text/html", html_page)}
    for label, (ending, mime, form) in made.items():
        st.download_button(
            f"View as {label}",
            data=lambda form=form: form(slice.render(store(), chosen)),
            file_name=f"attention.{ending}",
            mime=mime,
            on_click="ignore",
            icon=":material/article:",
            key=f"view_{ending}",
            help="For reading: numbers are rounded and samples left out. CSV and JSON of whole runs are on Runs.",
        )


def rivals_of(ranking: Sequence[dict], chosen: Filters) -> list[dict]:
    """Return all but the baseline, the best first."""
    return [row for row in ranking if row["implementation"] != chosen.baseline]


def best_of(rivals: Sequence[dict]) -> dict | None:
    """Return the highest geometric mean of those that cover nearly what any covers, if there is one.

    Means over different cases are not comparable, and TF32 and FP8 are other precisions than their baseline's.
    """
    enough = max(1, 0.9 * max((row["compared"] for row in rivals), default=0))
    return next((row for row in rivals if not row["precision"] and row["compared"] >= enough), None)


def ranking_table(ranking: Sequence[dict], fits: pd.DataFrame) -> None:
    """Draw a row an implementation: precision, speedup, coverage, failures, how far it goes, what memory that took."""
    peaks = dict(zip(fits["implementation"], fits["peak_memory_mb"], strict=True))
    rows = [
        row
        | {
            "precision": reduced(row["precision"]),
            "failures": failure_words(row),
            "peak_memory_mb": peaks.get(row["implementation"]),
        }
        for row in ranking
    ]
    plain_html.show_table(rows, COLUMNS, "Every implementation with its speedup, coverage, failures and memory")


def reduced(precision: str | None) -> str | None:
    """Name the precision that an implementation computes in where that is not the dtype it is listed under."""
    return f"{precision.upper()}, reduced" if precision else None


def failure_words(counts: Mapping[str, object]) -> str:
    """Write failures by kind, as in OOM 3, unsupported 2; empty if nothing failed."""
    names = [name for name in text.STATUS_WORDS if name not in ("ok", None) and name in counts]
    return ", ".join(f"{text.status(name)} {counts[name]}" for name in names if counts[name] > 0)


def _sum(rows: Sequence[dict], name: str) -> int:
    return sum(row[name] for row in rows)
