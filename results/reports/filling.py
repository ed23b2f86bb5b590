"""Merging the tables of several runs: the choice of the GPU, of the run of each row, and of the settings."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from results.reports.layout import Labels, Section, TableRow

_CHIP = re.compile(r"[A-Z]*\d+[A-Z]*")  # A100, H100, A10G, 4060


def merged(
    each: Mapping[str, Sequence[Section]], gpus: Mapping[str, str | None], printed_on: Mapping[str, str | None]
) -> dict[str, list[Section]]:
    """Return the sections of several runs by title, one for each setting.

    A table shows one GPU: the one that the report names, or else the one whose runs fill the most rows. The settings
    that fill the most rows are kept, and those that fill a row which the others do not.
    `gpus` maps runs to GPUs, `printed_on` maps titles to the GPUs that the report names.
    """
    found: dict[str, dict[str, list[tuple[str, Section]]]] = {}
    for run_id, sections_of_run in each.items():
        for section in sections_of_run:
            found.setdefault(section.title, {}).setdefault(section.setting, []).append((run_id, section))
    whole = {}
    for title, settings in found.items():
        shown = _of_one_gpu([pair for same in settings.values() for pair in same], gpus, printed_on.get(title))
        kept = [[pair for pair in same if pair[0] in shown] for same in settings.values()]
        whole[title] = _fullest([_one_of(same) for same in kept if same])
    return whole


def _of_one_gpu(
    found: Sequence[tuple[str, Section]], gpus: Mapping[str, str | None], printed_on: str | None
) -> set[str]:
    """Return the runs on the GPU that the report names, or else on the one that fills the most rows."""
    rows: dict[str | None, set[Labels]] = {}
    cells: Counter[str | None] = Counter()
    for run_id, section in found:
        own = [row for row in section.rows if row.own]
        rows.setdefault(gpus.get(run_id), set()).update(row.labels for row in own)
        cells[gpus.get(run_id)] += sum(map(_filled, own))
    order = {
        gpu: (bool(of_gpu) and _is_same_chip(gpu, printed_on), len(of_gpu), cells[gpu]) for gpu, of_gpu in rows.items()
    }
    best = max(order, key=order.__getitem__)
    return {run_id for run_id, _ in found if gpus.get(run_id) == best}


def _is_same_chip(ours: str | None, theirs: str | None) -> bool:
    """Return whether two GPU names have the same chip; memory and form factor do not count."""
    chip = _CHIP.search(theirs or "")
    return chip is not None and chip[0] in _CHIP.findall(ours or "")


def _fullest(settings: Sequence[Section]) -> list[Section]:
    filled = {at: {row.labels for row in section.rows if row.own} for at, section in enumerate(settings)}
    order = sorted(filled, key=lambda at: -len(filled[at]))
    kept: list[Section] = []
    seen: set[Any] = set()
    for at in order:
        if not kept or (filled[at] and len(filled[at]) == len(filled[order[0]])) or filled[at] - seen:
            kept.append(settings[at])
            seen |= filled[at]
    return kept


def _one_of(same: Sequence[tuple[str, Section]]) -> Section:
    """Return one section from several of the same setting, with each row from the run that fills most of it.

    A tie goes to the run with the most ranges in its words, then the most cases, then the most cells in the table.
    """
    whole = {run_id: sum(map(_filled, section.rows)) for run_id, section in same}
    rows = []
    for at in range(len(same[0][1].rows)):
        of_row = {run_id: section.rows[at] for run_id, section in same}
        order = {
            run_id: (_filled(row), len(row.cases), sum(row.cases), whole[run_id]) for run_id, row in of_row.items()
        }
        best = max(order, key=order.__getitem__)
        measured = of_row[best].own and not (same[0][1].by_formula or same[0][1].pooled)
        rows.append(replace(of_row[best], run=best) if measured else of_row[best])
    return replace(same[0][1], rows=tuple(rows))


def _filled(row: TableRow) -> int:
    """Return the number of own cells with text in a row."""
    return sum(map(bool, row.own or ()))
