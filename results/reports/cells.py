"""What a printed cell says: a number with its unit, or why there is none.

Reports print MB and GB for what their code divides by 1024, so MB is read as MiB and GB as 1024 MiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from results.records import Status
from results.reports.tables import plain

MIB = {"MB": 1.0, "GB": 1024.0}
_SCALES = {**MIB, "PFLOPS": 1000.0}  # to MiB and TFLOP/s

_NUMBER = r"~?\s*(?P<number>\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_CELL = re.compile(rf"^{_NUMBER}\s*(?P<unit>[A-Za-z%]+)?(?:\s+per block)?$")
_REMARK = re.compile(r"^(?P<cell>.*?)\s*\((?P<remark>.*)\)$")
_SEQLEN = re.compile(r"^(\d+)(K?)$")


class ReportError(ValueError):
    """A text or run that does not fit the report's layout; the message says where and what was expected."""


@dataclass(frozen=True)
class Cell:
    """The status of a printed cell, its number if there is one, and what stands beside it in brackets."""

    status: Status
    value: float | None = None
    remark: str | None = None


def read_cell(text: str, unit: str = "") -> Cell:
    """The meaning of a cell; `unit` is its unit where the cell itself names none. Memory comes in MiB.

    Raises ReportError if the cell is neither a number nor a known word for a missing one.
    """
    cell, remark = _split(plain(text))
    if cell == "OOM":
        return Cell(Status.OOM, remark=remark)
    if cell == "N/A":
        return Cell(Status.UNSUPPORTED, remark=remark)
    if cell in ("—", "-", "Enabled", "Fits!"):
        return Cell(Status.SKIPPED, remark=remark)
    match = _CELL.match(cell)
    if not match:
        raise ReportError(f"Cell {text!r} is neither a number nor one of OOM, N/A, —.")
    if remark == "OOM":  # the number is what would be needed
        return Cell(Status.OOM, remark=f"{cell} needed")
    value = float(match["number"].replace(",", ""))
    return Cell(Status.OK, _scale(value, match["unit"] or unit), remark)


def read_seqlen(text: str) -> int:
    """A printed sequence length: 512, 1,024 or 2K (K is 1024). Raises ReportError for anything else."""
    match = _SEQLEN.match(plain(text).replace(",", ""))
    if not match:
        raise ReportError(f"Sequence length {text!r} is neither a number nor one with K.")
    return int(match[1]) * (1024 if match[2] else 1)


def read_count(text: str) -> int | None:
    """A whole number in a label; None where the case does not say it."""
    return None if text == "None" else int(text.replace(",", ""))


def with_k(seqlen: int) -> str:
    """A sequence length as reports print it: 2048 as 2K, 512 as 512."""
    return f"{seqlen // 1024}K" if seqlen % 1024 == 0 else str(seqlen)


def _split(cell: str) -> tuple[str, str | None]:
    match = _REMARK.match(cell)
    return (match["cell"], match["remark"]) if match else (cell, None)


def _scale(value: float, unit: str) -> float:
    return round(value * _SCALES[unit], 6) if unit in _SCALES else value
