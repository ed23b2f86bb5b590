"""The plan of a sweep as an empty map, and every skipped combination with its reason."""

import html
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import maps, messages, tables
from results.levels import Level, level_of
from runner.sweeps import Sweep

_PER_CELL = 12  # number of skipped implementations in the tooltip of a cell
_MAX_CELLS = 2000  # the largest map that is drawn


def show(sweep: Sweep, implementations: tuple[str, ...] | None) -> None:
    """Draw the map of a sweep without a plan."""
    names = implementations or sweep.implementations
    cells = [
        asdict(case) | {"implementation": name, "mode": mode, "reason": None}
        for case in sweep.cases()
        for name in names
        for mode in sweep.modes
    ]
    _map(level_of(sweep.level), cells, planned=False)


def show_plan(sweep: Sweep, plan: Mapping[str, Any]) -> None:
    """Draw the map of a plan, the reasons for skipped combinations, and every combination as a table."""
    level, cells = level_of(sweep.level), plan["cells"]
    _map(level, cells, planned=True)
    reasons = Counter(cell["reason"] for cell in cells if cell["reason"])
    if reasons:
        rows = [{"skipped": count, "because": reason} for reason, count in reasons.most_common()]
        config = {"skipped": tables.number("skipped", None, width=80), "because": tables.words("because", "large")}
        tables.grid(pd.DataFrame(rows), "Reasons for skipped combinations", config)
    label = f"Every combination of the plan: {messages.counted(len(cells), 'row')}"
    alt = "Every combination of the plan"
    messages.folded(label, "every_planned", lambda: tables.grid(_table(level, cells), alt))


def _map(level: Level, cells: Iterable[Mapping[str, Any]], *, planned: bool) -> None:
    """Draw the map that the results will fill, without numbers."""
    places: dict[tuple, list[Mapping[str, Any]]] = {}
    for cell in cells:
        place = cell["dtype"], cell.get(level.columns.field), cell.get(level.rows.field)
        places.setdefault(place, []).append(cell)
    if len(places) > _MAX_CELLS:
        st.caption(f"{len(places):,} shapes are more than a map shows.")
        return
    alt = f"Shapes to be measured by {level.columns.label} and {level.rows.label}"
    rows = [_row(level, place, of_place, planned) for place, of_place in places.items()]
    maps.show(level, rows, maps.winners({}, []), "plan_map", alt)


def _row(level: Level, place: tuple, cells: list[Mapping[str, Any]], planned: bool) -> dict[str, Any]:
    dtype, column, row = place
    measured = sum(not cell["reason"] for cell in cells)
    skipped = dict.fromkeys(f"{cell['implementation']}: {cell['reason']}" for cell in cells if cell["reason"])
    lines = [f"{messages.counted(measured, 'number')} to measure"] if measured or not planned else []
    lines += list(skipped)[:_PER_CELL]
    return {
        "dtype": dtype,
        level.columns.column: column,
        level.rows.column: row,
        "shown": None,
        "status": None if measured else "skipped",
        "failure": f"{measured} to do" if measured else "skipped",
        "hover": "<br>".join(html.escape(line) for line in lines),
    }


def _table(level: Level, cells: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    fields = ["implementation", "mode", "dtype", level.columns.field, level.rows.field]
    table = pd.DataFrame(cells)[[*fields, "seconds", "memory_mb", "reason"]]
    names = {
        level.columns.field: level.columns.label,
        level.rows.field: level.rows.label,
        "seconds": "estimated time (s)",
        "memory_mb": "peak memory (MiB)",
        "reason": "skipped because",
    }
    return table.rename(columns=names)
