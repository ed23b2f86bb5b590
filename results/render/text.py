"""Values as text: missing values, sources, sizes, durations, and cells that are safe in spreadsheets.

Standard library only, because the runner shows its progress with it on GPU nodes.
"""

SOURCE_WORDS = {
    "local": "measured here",
    "published": "published",
    "upload": "uploaded",
    "shipped": "included with attnbench",
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")  # starts of formulas, and our quote


def missing(value: object) -> bool:
    """Return whether a value of a table is missing: None, NaN, NaT or pandas' NA."""
    if value is None or isinstance(value, str | int):
        return value is None
    return value != value if isinstance(value, float) else str(value) in ("<NA>", "nan", "NaT")


def size(number: object) -> str:
    """Return a size such as 128, 1k or 64k; multiples of 1024 are shortened, a missing size is "not stated"."""
    if missing(number):
        return "not stated"
    whole = int(number)  # type: ignore[call-overload]
    return f"{whole // 1024}k" if whole >= 1024 and whole % 1024 == 0 else str(whole)


def duration(seconds: float | None) -> str:
    """Return a duration such as 45 s, 12 min or 3.5 h, at least 1 s; a missing duration is "unknown"."""
    if missing(seconds):
        return "unknown"
    if seconds < 90:
        return f"{max(1, round(seconds)) if seconds else 0} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def time_left(seconds: float | None, *, bound: bool) -> str:
    """Return the remaining time in words: about, at least (for a lower bound), or a text if it is not known."""
    if seconds is None:
        return "longer than estimated" if bound else "estimating"
    return f"{'at least' if bound else 'about'} {duration(seconds)} left"


def guard(text: str) -> str:
    """Return the text as a CSV cell that no spreadsheet runs as a formula."""
    return f"'{text}" if not text or text.startswith(_FORMULA) else text


def unguard(cell: str) -> str | None:
    """Return the original text of a guarded cell; None for an empty cell."""
    return cell.removeprefix("'") if cell else None
