"""Quotes of published reports: observations, recommendations and tables of words."""

import json
from dataclasses import dataclass

from results.paths import PUBLISHED


@dataclass(frozen=True)
class Note:
    """A quoted paragraph, or a table of words."""

    section: str  # its headings
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def shipped_notes(report: str) -> list[Note]:
    """Return the notes that ship with a report's runs, in order."""
    paths = sorted(PUBLISHED.glob(f"published-{report}*/notes.json"))
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))]
    return [Note(r["section"], tuple(r["lines"]), tuple(r["header"]), tuple(map(tuple, r["rows"]))) for r in records]
