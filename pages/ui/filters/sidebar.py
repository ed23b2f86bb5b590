"""The shared filters by the name of their former place."""

from pages.ui.filters.chips import DTYPES, MODES, MULTIPLE, SINGLE, TIMINGS, current, draw
from pages.ui.filters.offers import at_first

__all__ = ["DTYPES", "MODES", "MULTIPLE", "SINGLE", "TIMINGS", "at_first", "current", "draw"]
