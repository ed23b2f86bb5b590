"""Cells by dtype and the axes of a level: the words and marks of maps, and tables of cells."""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd
import streamlit as st

from pages.ui.draw import tables, text
from results.compare.verdicts import BAND
from results.grouping import grouped
from results.levels import Level
from results.recommend.certainty import SpeedupRange
from results.recommend.contest import Standing

COLUMNS = ("speedup", "latency_ms", "baseline_ms", "p20", "p80", "n", "status", "note", "source", "run_id")

TIE, NOT_CERTAIN, DOUBT = "≈", "≳", "?"
MARKS = {  # marks before the words of a cell, and their meanings
    TIE: "within ±2 %",
    NOT_CERTAIN: "ahead, not certain",
    DOUBT: "undecided or impossible",
}
_OF_STANDING = {Standing.TIE: TIE, Standing.NOT_CERTAIN: NOT_CERTAIN, Standing.CANNOT_DECIDE: DOUBT}

_OF_WINNER = ("ties", "shown", "mark", "failure", "label", "below", "hover")
NUMBERS = tables.declared("numbers")
WINNERS = tables.declared("winners")


def place_columns(level: Level) -> tuple[str, str, str]:
    """Return the columns that identify a cell."""
    return "dtype", level.columns.column, level.rows.column


def axis_columns(level: Level) -> dict[str, object]:
    """Return the configuration of the columns of sizes, labeled as the axes."""
    return {axis.column: tables.number(axis.label, None) for axis in (level.columns, level.rows)}


def by_dtype(table: Sequence[dict]) -> Iterator[tuple[str | None, str, list[dict]]]:
    """Yield each dtype in order, its name on the page, and its rows; rows without a stated dtype come last."""
    found = grouped(table, lambda row: None if text.missing(row["dtype"]) else row["dtype"])
    for dtype in sorted(found, key=lambda name: (name is None, name)):
        yield dtype, dtype_name(dtype), found[dtype]


def dtypes(table: pd.DataFrame) -> list[str | None]:
    """Return the dtypes of a table in order; None, for rows without a stated dtype, comes last."""
    return sorted(table["dtype"].dropna().unique()) + [None] * bool(table["dtype"].isna().any())


def of_dtype(table: pd.DataFrame, dtype: str | None) -> pd.DataFrame:
    """Return the rows of a dtype; None selects rows without a stated dtype."""
    return table[table["dtype"].isna() if dtype is None else table["dtype"] == dtype]


def dtype_name(dtype: str | None) -> str:
    """Return the dtype as the page names it."""
    return dtype if dtype and isinstance(dtype, str) else "dtype not stated"  # a table has NaN for None


def facets(table: pd.DataFrame, draw: Callable[[pd.DataFrame, str | None], None]) -> None:
    """Draw a part of the page for each dtype, two in a row."""
    kinds = dtypes(table)
    for start in range(0, len(kinds), 2):
        for column, dtype in zip(st.columns(2 if len(kinds) > 1 else 1), kinds[start : start + 2], strict=False):
            with column:
                draw(of_dtype(table, dtype), dtype)


def winner_cells(level: Level, winners: pd.DataFrame) -> pd.DataFrame:
    """Return winners with columns for the map: `ties`, `mark`, `label`, `below`, `hover`, `shown` and `failure`."""
    said = [_winner_words(level, row) for row in winners.to_dict("records")]
    return winners.assign(**{name: [words[name] for words in said] for name in _OF_WINNER})


def _winner_words(level: Level, row: dict) -> dict[str, object]:
    lacks, tied = text.missing(row["winner"]), row["tied"]
    mark = _OF_STANDING.get(row["standing"], "") if text.missing(row["void"]) else DOUBT
    mark = "" if lacks else mark
    return {
        "ties": ", ".join(tied[1:]) if isinstance(tied, list) or hasattr(tied, "tolist") else "",
        "shown": row["winner"],
        "mark": mark,
        "failure": text.status(row["status"]) if lacks else None,
        "label": "" if lacks else f"{mark} {text.short(row['winner'])}".strip(),
        # The lead over the next best.
        "below": "" if text.missing(row["next"]) else f"{text.ratio(row['margin'])} {text.short(row['next'])}",
        "hover": _winner_hover(level, row),
    }


def speedup_cells(
    level: Level, grid: Sequence[dict], implementation: str, baseline: str | None, ranges: Mapping[tuple, SpeedupRange]
) -> list[dict]:
    """Return every cell of the slice with the speedup of one implementation and the words of the map.

    A cell without a baseline says so. `ranges` holds the intervals of the speedups by dtype and place.
    """
    found: dict[tuple, dict] = {}
    for row in grid:
        place = row["dtype"], *level.place(row)
        if row["implementation"] == implementation:
            found[place] = row
        elif place not in found:
            here = dict(zip(place_columns(level), place, strict=True))
            found[place] = dict.fromkeys(row) | here | {"implementation": implementation}
    drawn = (
        {
            "shown": row["speedup"],
            "failure": _no_speedup(row),
            **_speedup_words(row, ranges.get(place)),
            "hover": _speedup_hover(level, row, baseline, ranges.get(place)),
        }
        for place, row in found.items()
    )
    return [row | more for row, more in zip(found.values(), drawn, strict=True)]


def mean_cells(
    level: Level, table: pd.DataFrame, draw: Callable[[pd.DataFrame], tuple[dict[str, object], list[str]]]
) -> list[dict]:
    """Return a cell for each place of a table; `draw` returns its fields, and its words below the sizes."""
    places, found = [*place_columns(level)], []
    for place, rows in table.groupby(places, dropna=False):
        cell = dict(zip(places, place, strict=True))
        fields, words = draw(rows)
        lines = [_sizes(level, cell), *words, *[f"geometric mean of {len(rows)} shapes"] * (len(rows) > 1)]
        found.append({**cell, "status": "ok", "failure": None, "hover": "<br>".join(lines), **fields})
    return found


def cells_table(level: Level, table: Sequence[dict], baseline: str | None) -> None:
    """Draw the numbers behind a speedup heatmap."""
    cells = pd.DataFrame(table)
    worded = tables.in_words(cells).assign(
        baseline_ms=cells["latency_ms"] * cells["speedup"], note=cells["note"].fillna("")
    )
    shown = worded[[*place_columns(level), *COLUMNS]].dropna(axis="columns", how="all")
    config = NUMBERS | axis_columns(level) | {"baseline_ms": tables.number(f"{baseline} (ms)", "%.4g")}
    tables.grid(shown, "Numbers of every shape", config)


def _winner_hover(level: Level, row: dict) -> str:
    lines = [_sizes(level, row)]
    if not text.missing(row["winner"]):
        lines.append(f"{row['winner']}: {text.ms(row['latency_ms'])}")
        lines += [f"{text.ratio(row['speedup'])} the baseline"] if not text.missing(row["speedup"]) else []
        lines += [] if text.missing(row["void"]) else [f"cannot be right: {row['void']}"]
    if hasattr(row["failed"], "__len__") and len(row["failed"]):
        named = [failed.rsplit(" ", 1) for failed in row["failed"]]
        lines += [f"{name}: {text.status(status)}" for name, status in named if status != "unsupported"]
    if row["cases"] > 1:
        lines.append(f"geometric mean of {row['cases']} shapes")
    return "<br>".join(html.escape(line) for line in lines)


def _sizes(level: Level, row: dict) -> str:
    return ", ".join(
        f"{axis.label} {'not stated' if text.missing(row[axis.column]) else int(row[axis.column])}"
        for axis in (level.columns, level.rows)
    )


def _no_speedup(row: dict) -> str | None:
    if not text.missing(row["speedup"]):
        return None
    if row["status"] != "ok":
        return text.status(row["status"])
    return "no baseline" if text.missing(row["baseline_status"]) else f"baseline {text.status(row['baseline_status'])}"


def _speedup_words(row: dict, found: SpeedupRange | None) -> dict[str, str]:
    """Return the mark and the words of a cell: within the band, undecided, or only its number."""
    if text.missing(row["speedup"]):
        return {"mark": "", "label": ""}
    doubtful = found is not None and (found.void or not found.decided)
    within = 1 / (1 + BAND) <= row["speedup"] <= 1 + BAND
    mark = DOUBT if doubtful else TIE if within else ""
    return {"mark": mark, "label": f"{mark} {text.ratio(row['speedup'])}".strip()}


def _speedup_hover(level: Level, row: dict, baseline: str | None, found: SpeedupRange | None) -> str:
    lines = [_sizes(level, row)]
    if not text.missing(row["latency_ms"]):
        lines.append(f"{row['implementation']}: {text.ms(row['latency_ms'])}")
    if not text.missing(row["speedup"]):
        lines.append(f"{text.ratio(row['speedup'])} {baseline} ({text.ms(row['latency_ms'] * row['speedup'])})")
        if found and found.low is not None:
            told = "" if found.decided else ", which does not decide it"
            lines.append(f"90 % interval {text.ratio(found.low)} to {text.ratio(found.high)}{told}")
        lines += [f"cannot be right: {found.void}"] if found and found.void else []
    elif row["status"] == "ok":
        lines.append(f"no speedup: {baseline} {text.status(row['baseline_status'])}")
    else:
        lines.append(f"{text.status(row['status'])}: {text.STATUS_MEANINGS.get(row['status'], '')}")
    if not text.missing(row["note"]):
        lines.append(str(row["note"])[:120])
    lines.append(f"n = {'not stated' if text.missing(row['n']) else int(row['n'])}, {text.sources(row['source'])}")
    return "<br>".join(html.escape(line) for line in lines)
