"""What a picture or a file that leaves the page says of itself: its slice and the date of its numbers."""

from __future__ import annotations

import re

import pandas as pd

from pages.ui.draw import text
from pages.ui.shell.data import ask
from results.query import pages
from results.slice import Filters

_COLUMNS = ("gpu", "workload", "mask", "mode", "timing", "shape", "baseline")


def line(chosen: Filters) -> str:
    """Return the slice, its baseline and when its newest numbers were taken, in one line for a figure."""
    made = ask(pages.provenance, chosen)["created"].dropna()
    dated = [] if made.empty else [str(made.max())[:10]]
    parts = [*text.slice_parts(chosen), text.TIMING_WORDS.get(chosen.timing or ""), f"baseline {chosen.baseline}"]
    return text.label(" · ".join(part for part in [*parts, "attnbench", *dated] if part))


def file_name(chosen: Filters, *parts: str) -> str:
    """Return a name of letters, digits and dashes for a file of these parts over the slice."""
    of = (chosen.gpu, chosen.mask, chosen.mode, chosen.shape, f"over {chosen.baseline}")
    words = " ".join(str(part) for part in (*parts, *of) if part)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-").lower()


def with_slice(chosen: Filters, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the slice in its first columns, so that a file of it says what it is about."""
    said = {name: getattr(chosen, name) for name in _COLUMNS if name not in table}
    return pd.concat([pd.DataFrame(said, index=table.index), table], axis="columns")
