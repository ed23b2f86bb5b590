"""The answer over a slice: who is fastest, how sure that is, what failed."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from pages.ui.draw import bars, cells, charts, messages, plain_html, text
from pages.ui.draw.bars import Bar
from pages.ui.draw.plain_html import Fact, TableColumn
from pages.ui.shell.data import ask, store
from results.implementations import facts_of
from results.levels import Level
from results.query.declared import declared
from results.recommend import winners
from results.render import slice
from results.render.html import html_page
from results.slice import NOT_STATED, Filters, level_in
from results.store.database import Store

_SHOWN = 4  # rivals named when the pointer is on a cell
_TRIED = ("ok", "unsupported", "skipped")  # statuses that are no failure


def headline(ranking: Sequence[dict], won: Sequence[dict], chosen: Filters) -> None:
    """Draw the answer in one sentence, what is undecided, and four numbers."""
    rivals = rivals_of(ranking, chosen)
    best = best_of(rivals)
    st.markdown(f"#### {_sentence(rivals, best, won, chosen)}")
    undecided(won, "shape", "to tell the two fastest apart")
    _facts(ranking, rivals, best, won, chosen)


def undecided(drawn: Sequence[dict], noun: str, too_noisy: str) -> None:
    """Say how many cells of a map are too noisy for what they would tell, or impossible; nothing of none."""
    count = sum(row["mark"] == cells.DOUBT for row in drawn)
    if count:
        st.markdown(
            f":orange-badge[:material/help: {count} of {messages.counted(len(drawn), noun)} undecided] "
            f"Too noisy {too_noisy}, or impossible: [findings](findings)"
        )


def about(chosen: Filters, drawn: Sequence[dict]) -> str:
    """Return what an answer is about: the GPU, and in brackets dtype, mask, direction and shape."""
    level = level_in(chosen)
    mode = text.MODE_WORDS.get(chosen.mode or "", chosen.mode) if len(level.modes) > 1 else None
    there = {cells.dtype_name(None if text.missing(row["dtype"]) else row["dtype"]) for row in drawn}
    mask = "mask not stated" if chosen.mask == NOT_STATED else chosen.mask
    parts = (", ".join(sorted(there)), mask, mode, chosen.shape)
    gpu = "a GPU that is not stated" if chosen.gpu == NOT_STATED else text.plain(chosen.gpu)
    return f"On {gpu} ({', '.join(text.plain(part) for part in parts if part)})"


def _sentence(rivals: Sequence[dict], best: dict | None, won: Sequence[dict], chosen: Filters) -> str:
    """Return the answer with what it is about: GPU, dtype, mask, direction and shape."""
    baseline, of = text.plain(chosen.baseline), about(chosen, won)
    if best is None:
        return f"{of} {_most_wins(won)}; nothing can be compared with {baseline}"
    verb = "is the fastest" if best["speedup"] > 1 else "comes closest"
    answer = (
        f"{of} {text.plain(best['implementation'])} {verb}: {text.ratio(best['speedup'])} {baseline} on "
        f"average over {messages.counted(best['compared'], 'shape')}"
    )
    following = [row for row in alike(rivals) if row is not best]
    if not following or best["speedup"] <= 1:
        return answer
    lead, name = best["speedup"] / following[0]["speedup"], text.plain(following[0]["implementation"])
    return f"{answer}, {text.ratio(lead)} the next best, {name}"


def _most_wins(won: Sequence[dict]) -> str:
    """Name who is fastest in most shapes, where no mean over the baseline says it."""
    wins = Counter(row["winner"] for row in won if not text.missing(row["winner"])).most_common(1)
    if not wins:
        return "nothing has a time"
    name, count = wins[0]
    return f"{text.plain(name)} is the fastest in {count} of {messages.counted(len(won), 'shape')}"


def _facts(
    ranking: Sequence[dict], rivals: Sequence[dict], best: dict | None, won: Sequence[dict], chosen: Filters
) -> None:
    compared, cases = (_sum(rivals, name) for name in ("compared", "cases"))
    plain_html.show_facts(
        (
            *([] if best is None else _of_best(best, won)),
            Fact(
                "Measured pairs",
                f"{compared} of {cases}",
                messages.counted(len(rivals), "implementation"),
                f"Pairs of shape and implementation for which both it and {chosen.baseline} were timed in the same "
                "run.",
            ),
            _failed(ranking),
        )
    )


def _of_best(best: dict, won: Sequence[dict]) -> tuple[Fact, Fact]:
    """Return the mean speedup of the fastest implementation, and in how many shapes it is the fastest."""
    name = best["implementation"]
    wins = sum(row["winner"] == name for row in won)
    ties = sum(name in row["ties"].split(", ") for row in won)
    close = sum(row["winner"] == name and bool(row["ties"]) for row in won)
    return (
        Fact(
            "Mean speedup",
            text.ratio(best["speedup"]),
            f"range {text.span(best['lowest'], best['highest'])}",
            "Highest mean speedup (geometric) over the baseline among implementations that cover at least 90 % as "
            "many shapes as the best-covered one. TF32 and FP8 are listed but not ranked.",
        ),
        Fact(
            "Fastest in",
            f"{wins} of {messages.counted(len(won), 'shape')}",
            ", ".join([f"{close} of them close"] * bool(close) + [f"tied in {ties} more"] * bool(ties)),
            "Close or tied: another implementation is within 2 %, or cannot be told apart.",
        ),
    )


def _failed(ranking: Sequence[dict]) -> Fact:
    kinds = {name: _sum(ranking, name) for name in text.STATUS_WORDS if name in ranking[0]}
    failed = {name: count for name, count in kinds.items() if name not in _TRIED}
    others = failure_words({name: count for name, count in kinds.items() if name not in failed})
    return Fact(
        "Failed",
        str(sum(failed.values())),
        ", ".join(filter(None, (failure_words(failed), others, _untried(ranking)))) or "none",
        "Tried without a result: out of memory, incorrect, an error. Unsupported and skipped ones are no failures.",
    )


def judged(store: Store, chosen: Filters) -> list[dict]:
    """Return winners with what the map draws, and in each cell how far behind the others are."""
    won = cells.winner_cells(level_in(chosen), winners.winners(store, chosen)).to_dict("records")
    for row in won:
        row["hover"] += "".join(f"<br>{html.escape(rival)}" for rival in list(row["rivals"])[:_SHOWN])
    return won


def winners_csv(level: Level, won: Sequence[dict]) -> pd.DataFrame:
    """Return a row a shape and implementation: the winner with its median, p20, p80 and n, then each rival's ratio."""
    place = cells.place_columns(level)
    rows = []
    for row in won:
        at = {name: row[name] for name in place}
        numbers = {name: row[name] for name in ("latency_ms", "p20", "p80", "n", "speedup", "cases")}
        if not text.missing(row["winner"]):
            winner = {"implementation": row["winner"], "ratio": 1.0, "standing": "fastest"}
            rows += [at | winner | numbers, *(at | dict(other) for other in row["others"])]
        rows += [
            at | dict(zip(("implementation", "standing"), each.rsplit(" ", 1), strict=True)) for each in row["failed"]
        ]
    return pd.DataFrame(rows)


def winners_table(level: Level, won: Sequence[dict]) -> None:
    """Draw the winner of every shape as a table."""
    names = [*cells.place_columns(level), "winner", "latency_ms", "speedup", "next", "margin", "standing", "failed"]
    shown = pd.DataFrame(won)[names].assign(failed=[", ".join(row["failed"]) for row in won])
    config = {
        "winner": st.column_config.TextColumn("fastest"),
        "next": st.column_config.TextColumn("next best"),
        "margin": st.column_config.NumberColumn("takes as long", format="%.2f×"),
        "standing": st.column_config.TextColumn("how sure"),
        "failed": st.column_config.TextColumn("no time", width="medium"),
    }
    st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        alt="Fastest implementation of every shape",
        column_config=cells.NUMBERS | cells.axis_columns(level) | config,
    )


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
    """Return the highest geometric mean of those that cover nearly what any covers, if there is one."""
    return next(iter(alike(rivals)), None)


def alike(rivals: Sequence[dict]) -> list[dict]:
    """Return those whose means can be compared, best first: over nearly as many shapes, and in the same precision."""
    enough = max(1, 0.9 * max((row["compared"] for row in rivals), default=0))
    return [row for row in rivals if not row["precision"] and row["compared"] >= enough]


def ranking_table(ranking: Sequence[dict], fits: pd.DataFrame, chosen: Filters) -> None:
    """Draw a row an implementation: its mean speedup as a bar, coverage, failures, how far it goes, its memory.

    A mean over other shapes than the most is hatched, because it is not comparable.
    """
    peaks = dict(zip(fits["implementation"], fits["peak_memory_mb"], strict=True))
    said = ask(declared, level_in(chosen).name)
    palette = charts.colours([row["implementation"] for row in ranking])
    compared = {row["implementation"] for row in alike(ranking)}
    axis = bars.linear_axis(row["speedup"] for row in ranking)
    rows = [
        {
            "implementation": row["implementation"],
            "marked": "own" if facts_of(row["implementation"], said).family == "own" else "",
            "precision": reduced(row["precision"]),
            "bar": _bar(row, palette, row["implementation"] not in compared),
            "range": None if text.missing(row["lowest"]) else text.span(row["lowest"], row["highest"]),
            "shapes": f"{row['compared']} of {row['cases']}",
            "failures": ", ".join(filter(None, (failure_words(row), _untried([row])))) or None,
            "longest": row["longest"],
            "peak_memory_mb": peaks.get(row["implementation"]),
        }
        for row in ranking
    ]
    columns = {
        "implementation": TableColumn("implementation"),
        "bar": TableColumn("mean speedup", axis=axis, help=f"Geometric mean over {chosen.baseline}"),
        "range": TableColumn("range"),
        "shapes": TableColumn("shapes", help="With a time of it and of the baseline"),
        "precision": TableColumn("precision", help="Where it is not that of the inputs' dtype", text=True),
        "failures": TableColumn("no time", text=True),
        "longest": TableColumn("longest", text.size, "Longest sequence that ran"),
        "peak_memory_mb": TableColumn("peak memory", text.mib, "Largest of the selection"),
    }
    plain_html.show_table(rows, columns, "Every implementation with its speedup, coverage, failures and memory")
    if any(row["bar"] and row["bar"].hatched for row in rows):
        st.caption("Hatched: a mean over fewer shapes or in another precision. It does not compare with the others.")


def _bar(row: dict, palette: dict[str, str], hatched: bool) -> Bar | None:
    if text.missing(row["speedup"]):
        return None
    return Bar(row["speedup"], text.ratio(row["speedup"]), palette[row["implementation"]], hatched=hatched)


def reduced(precision: str | None) -> str | None:
    """Name the precision that an implementation computes in where that is not the dtype it is listed under."""
    return f"{precision.upper()}, reduced" if precision else None


def failure_words(counts: Mapping[str, object]) -> str:
    """Write failures by kind, as in OOM 3, unsupported 2; empty if nothing failed."""
    names = [name for name in text.STATUS_WORDS if name not in ("ok", None) and name in counts]
    return ", ".join(f"{text.status(name)} {counts[name]}" for name in names if counts[name] > 0)


def _untried(rows: Sequence[dict]) -> str:
    """Write how many shapes of the slice nobody tried; empty if none."""
    count = sum(row["cases"] - row["measured"] - row["failures"] - row["skipped"] for row in rows)
    return f"{text.status(None)} {count}" if count else ""


def _sum(rows: Sequence[dict], name: str) -> int:
    return sum(row[name] for row in rows)
