"""Colors of implementations and maps, and the marks of implementations, with the contrast that WCAG 2.2 asks for."""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import streamlit as st

from pages.ui.draw import text
from pages.ui.shell.data import ask
from results.paths import toml_of
from results.query.declared import colours as declared_colours

_DECLARED = toml_of(__file__)
SPARE_COLOURS, SYMBOLS = _DECLARED["spare"], _DECLARED["symbols"]
EMPTY_COLOUR: str = _DECLARED["empty"]
# Marks of implementations on every chart, in the order of the charts.
MARKS: dict[str, str] = toml_of(__file__, "marks.toml")
BACKGROUNDS, TEXT_COLOURS = _DECLARED["backgrounds"], _DECLARED["texts"]
MARK_CONTRAST, TEXT_CONTRAST = 3.0, 4.5  # WCAG 2.2, 1.4.11 and 1.4.3
FAILED_COLOUR, NOTHING_COLOUR = _DECLARED["failed"], _DECLARED["nothing"]
SLOWER_TO_FASTER, LESS_TO_MORE = _DECLARED["slower_to_faster"], _DECLARED["less_to_more"]
LIMITS = (1.25, 1.5, 2, 4, 8, 64)  # possible ends of the speedup scale; the text shows the real number
_APART = 60  # black and white have a distance of 441; closer colors are hard to tell apart in a legend
_STEPS = 50  # between a color and white or black
_INK_LIMIT = {"light": 0.20, "dark": 0.16}  # relative luminance at which black, or white, still has 4.5:1
FULL_MARGIN = 1.5  # the lead at which a winner's color is full
PALEST = 0.3


def theme() -> str:
    """Return the theme of the reader's browser, light or dark."""
    return st.context.theme.type or "light"


def palette(implementations: Sequence[str]) -> dict[str, str]:
    """Return a legible color for each name: the color that it declares, or a spare one."""
    names, declared = sorted(set(implementations)), ask(declared_colours)
    taken = [declared[name] for name in names if name in declared]
    others = [name for name in names if name not in declared]
    apart = [
        colour
        for colour in SPARE_COLOURS
        if all(math.dist(_channels(colour), _channels(other)) > _APART for other in taken)
    ]
    spare = apart if len(apart) >= len(others) else SPARE_COLOURS
    found = {name: declared.get(name) or spare[others.index(name) % len(spare)] for name in names}
    return {name: legible(colour, theme()) for name, colour in found.items()}


def symbol(name: str) -> str:
    """Return the mark of an implementation; a name that MARKS does not hold takes a free mark."""
    free = [mark for mark in SYMBOLS if mark not in MARKS.values()]
    return MARKS.get(name) or free[zlib.crc32(name.encode()) % len(free)]


def ordered(names: Iterable[str]) -> list[str]:
    """Return names in the order of every chart; names that MARKS does not hold come before PyTorch's."""
    place = {name: at for at, name in enumerate(MARKS)}
    between = place["torch_sdpa_auto"] - 0.5
    return sorted(set(names), key=lambda name: (place.get(name.partition("@")[0], between), name))


@cache
def legible(colour: str, on: str, least: float = MARK_CONTRAST) -> str:
    """Return a color, moved towards black or white until its contrast on a theme reaches `least`."""
    background = BACKGROUNDS[on]
    end = "#000000" if luminance(background) > 0.5 else "#ffffff"
    shades = (mixed(colour, end, step / _STEPS) for step in range(_STEPS + 1))
    return next(shade for shade in shades if contrast(shade, background) >= least)


def contrast(colour: str, other: str) -> float:
    """Return the contrast of two colors by WCAG 2.2, from 1 to 21."""
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a color by WCAG 2.2."""
    parts = (channel / 255 for channel in _channels(colour))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def mixed(colour: str, other: str, share: float) -> str:
    """Return a color that contains the given share of another color."""
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def ink(colour: str) -> str:
    """Return black or white, whichever has the higher contrast on a color: at least 4.5:1."""
    return "#000000" if (luminance(colour) + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


@dataclass(frozen=True)
class SpeedupScale:
    """Colors of speedups by their log2, symmetric around 1x."""

    limit: float  # the colors end at this speedup, and at its inverse
    colours: tuple[str, ...]

    @property
    def ticks(self) -> list[str]:
        """Return the labels of five evenly spaced places on the scale."""
        speedups = [self.limit**place for place in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        return [f"1/{1 / x:.3g}×" if x <= 0.5 else f"{x:.3g}×" for x in speedups]

    def colour(self, speedup: float) -> str:
        """Return the color of a speedup."""
        place = math.log(speedup) / math.log(self.limit)
        return _shade(self.colours, (max(-1.0, min(1.0, place)) + 1) / 2)


def speedup_scale(speedups: Iterable[float | None]) -> SpeedupScale:
    """Return the narrowest scale that holds these speedups, for the theme of the page."""
    known = [speedup for speedup in speedups if not text.missing(speedup)]
    widest = max((max(speedup, 1 / speedup) for speedup in known), default=1.0)
    limit = next((limit for limit in LIMITS if widest <= limit), LIMITS[-1])
    return SpeedupScale(limit, SLOWER_TO_FASTER[theme()])


def share_colour(percent: float) -> str:
    """Return the color of a share; shares above 100 % have the color of 100 %."""
    return _shade(LESS_TO_MORE[theme()], max(0.0, min(100.0, percent)) / 100)


def share_scale() -> dict[str, list[str]]:
    """Return the colors of shares from 0 to 100 % with their ticks."""
    return {"colours": [share_colour(at) for at in range(0, 101, 5)], "ticks": ["0 %", "25 %", "50 %", "75 %", "100 %"]}


def winner_colour(names: dict[str, str], name: str, margin: float | None) -> str:
    """Return the color of a winner, paler for a smaller lead over the next best.

    Black digits are legible on all shades of the light theme, white digits on all shades of the dark theme.
    """
    lead = 1.0 if text.missing(margin) else math.log(max(1.0, margin)) / math.log(FULL_MARGIN)
    return mixed(BACKGROUNDS[theme()], _full(names[name], theme()), PALEST + (1 - PALEST) * min(1.0, lead))


@cache
def _full(colour: str, theme: str) -> str:
    """Return the fullest shade of a color on which the theme's digits are legible."""
    towards = "#ffffff" if theme == "light" else "#000000"
    shades = (mixed(colour, towards, step / 20) for step in range(21))
    limit = _INK_LIMIT[theme]
    return next(s for s in shades if (luminance(s) >= limit if theme == "light" else luminance(s) <= limit))


def _shade(colours: Sequence[str], place: float) -> str:
    """Return the color at a place between 0 and 1 of a scale."""
    at = place * (len(colours) - 1)
    first = min(int(at), len(colours) - 2)
    return mixed(colours[first], colours[first + 1], at - first)


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
