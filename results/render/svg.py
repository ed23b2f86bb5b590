"""Charts of own numbers against printed ones, as SVG without a chart library."""

import html
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from results.metrics import METRICS
from results.reports.layout import Section
from results.reports.side_by_side import pairs

# Okabe and Ito's colors, distinct for every color vision; shapes repeat the distinction.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE, _LEGEND = 720, 460, 74, 52, 12, 22
_COLUMNS = 3  # columns of the legend
CAPTION = "A point a cell: across as printed, up as the run has it; on the line both agree."


def own_against_printed(found: Sequence[Section]) -> list[str]:
    """Return a figure for each metric that the run has, speedups first; none without a run."""
    cells = [pair for section in found for pair in pairs(section) if pair["own"] and pair["printed"]]
    cells = [pair for pair in cells if pair["own"] > 0 and pair["printed"] > 0]
    names = sorted({str(pair["metric"]) for pair in cells}, key=lambda name: (name != "speedup", name))
    return [_figure([pair for pair in cells if pair["metric"] == name], name) for name in names]


def _figure(cells: Sequence[dict[str, Any]], metric: str) -> str:
    values = [float(pair[side]) for pair in cells for side in ("own", "printed")]
    low, high = 0.8 * min(values), 1.25 * max(values)
    by_column = {
        column: [(float(pair["printed"]), float(pair["own"])) for pair in of]
        for column, of in groupby(sorted(cells, key=lambda pair: str(pair["column"])), lambda pair: str(pair["column"]))
    }
    rows = math.ceil(len(by_column) / _COLUMNS)
    unit = f" ({METRICS[metric].unit})" if METRICS[metric].unit else ""
    words = f"{METRICS[metric].label} of the own run against the printed one"
    body = [
        *_grid(low, high),
        _line(_at(low, low, high), _at(high, low, high), 'stroke-dasharray="5 4" stroke-width="1.5"'),
        *(mark for at, points in enumerate(by_column.values()) for mark in _marks(points, at, low, high)),
        *_legend(list(by_column)),
        _text(_LEFT + (_WIDTH - _LEFT) / 2, _HEIGHT - 8, f"{METRICS[metric].label} as printed{unit}", "middle"),
        f'<g transform="translate(14 {(_HEIGHT - _BELOW) / 2}) rotate(-90)">'
        f"{_text(0, 0, f'{METRICS[metric].label} of the own run{unit}', 'middle')}</g>",
    ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _LEGEND * rows}" role="img" aria-label="{html.escape(words)}" '
        f'style="max-width:{_WIDTH}px;width:100%" font-size="13" fill="currentColor" stroke="none">'
        f"{''.join(body)}</svg><figcaption>{html.escape(words)}. {CAPTION}</figcaption>"
    )


def _at(value: float, low: float, high: float) -> tuple[float, float]:
    """Return the x and y of a value on the logarithmic axes."""
    share = math.log(value / low) / math.log(high / low)
    return _LEFT + share * (_WIDTH - _LEFT - 8), _HEIGHT - _BELOW - share * (_HEIGHT - _BELOW - _ABOVE)


def _grid(low: float, high: float) -> Iterator[str]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    for tick in (step * 10.0**decade for decade in decades for step in steps):
        if low <= tick <= high:
            x, y = _at(tick, low, high)
            yield _line((x, _ABOVE), (x, _HEIGHT - _BELOW), 'opacity="0.2"')
            yield _line((_LEFT, y), (_WIDTH - 8, y), 'opacity="0.2"')
            yield _text(x, _HEIGHT - _BELOW + 18, f"{tick:g}", "middle")
            yield _text(_LEFT - 8, y + 4, f"{tick:g}", "end")


def _line(start: tuple[float, float], end: tuple[float, float], more: str) -> str:
    (x0, y0), (x1, y1) = start, end
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="currentColor" {more}/>'


def _marks(points: Sequence[tuple[float, float]], at: int, low: float, high: float) -> Iterator[str]:
    for printed, own in points:
        x, y = _at(printed, low, high)[0], _at(own, low, high)[1]
        name = ("circle", "rect", "polygon")[at % 3]
        yield f"{_mark(x, y, at)[:-2]}><title>printed {printed:.4g}, own {own:.4g}</title></{name}>"


def _mark(x: float, y: float, at: int) -> str:
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        f'<polygon points="{x:.1f},{y - 5.5:.1f} {x - 5:.1f},{y + 4:.1f} {x + 5:.1f},{y + 4:.1f}"',
    )
    return f'{shapes[at % 3]} fill="{COLOURS[at % len(COLOURS)]}" fill-opacity="0.85"/>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    for at, name in enumerate(names):
        x = _LEFT + (at % _COLUMNS) * (_WIDTH - _LEFT) / _COLUMNS
        y = _HEIGHT + _LEGEND * (at // _COLUMNS) + 8
        yield _mark(x, y, at)
        yield _text(x + 12, y + 5, name, "start")


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'
