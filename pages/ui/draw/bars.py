"""Bars in the rows of a table: how far each reaches on an axis that all rows share, and the span of its spread."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass

from pages.ui.draw import text

STYLE = """
.plain .reach { display: grid; grid-template-columns: minmax(5rem, 1fr) minmax(4.5rem, max-content); gap: 0.5rem;
  align-items: center; text-align: left; }
.plain .reach .track { position: relative; height: 0.9rem; }
.plain .reach .fill { position: absolute; inset: 0.1rem auto 0.1rem; border-radius: 2px; min-width: 2px; }
.plain .reach .fill.hatched { opacity: 0.6; background-image: repeating-linear-gradient(
  45deg, Canvas 0 2px, transparent 2px 6px); }
.plain .reach .span { position: absolute; top: 0.35rem; height: 0.2rem; min-width: 2px; background: currentcolor; }
.plain .reach .line { position: absolute; top: -0.35rem; bottom: -0.35rem; width: 1px; background: currentcolor; }
.plain .reach .ticks { position: relative; height: 1.1rem; font-size: 0.75rem; }
.plain .reach .ticks span { position: absolute; transform: translateX(-50%); }
.plain .reach .ticks span:first-child { transform: none; }
"""
_MARKS = (1, 2, 5)


@dataclass(frozen=True)
class Bar:
    """A number as a bar, and beside it in words."""

    value: float
    words: str
    colour: str = "currentcolor"
    span: tuple[float, float] | None = None  # on the axis of the value
    hatched: bool = False  # where it is not to be compared with the others
    hover: str = ""


@dataclass(frozen=True)
class BarAxis:
    """The axis of a column of bars; from 0, or logarithmic where `low` is above 0."""

    low: float
    high: float
    ticks: tuple[float, ...] = ()
    line: float | None = None  # what values are read against: bars begin there, and a line goes through all rows

    def percent(self, value: float) -> float:
        """Return where a value stands, in percent of the column's width."""
        if self.low > 0:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high if self.high else 0.0
        return 100 * min(1.0, max(0.0, share))

    def head(self, label: str) -> str:
        """Return what stands above the column: its name, and the ticks of the axis."""
        ticks = "".join(f'<span style="left:{self.percent(tick):.1f}%">{tick:g}</span>' for tick in self.ticks)
        under = f'<div class="ticks">{ticks}</div><span></span>' if ticks else ""
        return f"{html.escape(label)}<div class='reach'>{under}</div>" if under else html.escape(label)

    def draw(self, bar: Bar) -> str:
        """Return a bar as HTML."""
        kind = "fill hatched" if bar.hatched else "fill"
        start, end = sorted((0.0 if self.line is None else self.percent(self.line), self.percent(bar.value)))
        style = f"left:{start:.1f}%;width:{end - start:.1f}%;background-color:{bar.colour}"
        drawn = f'<span class="{kind}" style="{style}"></span>'
        if bar.span:
            left, right = map(self.percent, bar.span)
            drawn += f'<span class="span" style="left:{left:.1f}%;width:{max(0.0, right - left):.1f}%"></span>'
        if self.line is not None:
            drawn += f'<span class="line" style="left:{self.percent(self.line):.1f}%"></span>'
        track = f'<div class="track" title="{html.escape(bar.hover)}">{drawn}</div>'
        return f'<div class="reach">{track}<span>{html.escape(bar.words)}</span></div>'


def log_axis(values: Iterable[float]) -> BarAxis:
    """Return a logarithmic axis from the mark 1, 2 or 5 of a decade below all values, the least of them visible."""
    known = [value for value in values if not text.missing(value) and value > 0]
    low, high = min(known, default=1.0), max(known, default=1.0)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0**decade for decade in decades for step in _MARKS]
    first = max(mark for mark in marks if mark <= low / 1.15)
    ticks = [mark for mark in marks if first <= mark <= high]
    few = [tick for tick in ticks if tick in (first, *(10.0**decade for decade in decades))]
    return BarAxis(first, max(high, first * 1.5), tuple(ticks if len(ticks) <= 5 else few))


def linear_axis(values: Iterable[float]) -> BarAxis:
    """Return an axis from 0 to the largest value."""
    return BarAxis(0.0, max((value for value in values if not text.missing(value)), default=1.0))
