"""Values as text: what is missing, sources, sizes, durations, and cells that no spreadsheet takes for a formula.

Standard library only, so that the runner's progress on a bare GPU node can use it.
"""

from __future__ import annotations

SOURCE_WORDS = {
    "local": "measured here",
    "published": "published",
    "upload": "uploaded",
    "shipped": "included with attnbench",
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")  # a text that begins so is taken for a formula, or is quoted already


def missing(value: object) -> bool:
    """Tell whether a value of a table is missing: None, NaN, NaT or pandas' NA."""
    if value is None or isinstance(value, str | int):
        return value is None
    return value != value if isinstance(value, float) else str(value) in ("<NA>", "nan", "NaT")


def size(number: object) -> str:
    """Return 128, 1k or 64k: whole multiples of 1024 are shortened; "not stated" of a missing one."""
    if missing(number):
        return "not stated"
    whole = int(number)  # type: ignore[call-overload]
    return f"{whole // 1024}k" if whole >= 1024 and whole % 1024 == 0 else str(whole)


def duration(seconds: float | None) -> str:
    """Return 45 s, 12 min or 3.5 h, 1 s of any part of a second; "unknown" of a missing one."""
    if missing(seconds):
        return "unknown"
    if seconds < 90:
        return f"{max(1, round(seconds)) if seconds else 0} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def time_left(seconds: float | None, *, bound: bool) -> str:
    """Return what is known of the time that is left: about so much, at least so much, or only that it is not over."""
    if seconds is None:
        return "longer than estimated" if bound else "estimating"
    return f"{'at least' if bound else 'about'} {duration(seconds)} left"


def guard(text: str) -> str:
    """Return the text as a cell of a CSV that no spreadsheet takes for a formula."""
    return f"'{text}" if not text or text.startswith(_FORMULA) else text


def unguard(cell: str) -> str | None:
    """Return the text that `guard` made the cell from; None for an empty cell."""
    return cell.removeprefix("'") if cell else None
