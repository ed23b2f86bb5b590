"""Colours of maps: digits are read on all of them, and one colour of digits suits a whole map."""

import pytest

from pages.ui.draw import heatmaps
from pages.ui.shell.data import asked_ahead
from results.query import declared

MARGINS = (None, 1.0, 1.02, 1.1, 1.24, 1.5, 40.0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_colour_of_digits_is_read_on_every_shade(home, monkeypatch, theme):
    monkeypatch.setattr(heatmaps, "theme", lambda: theme)
    palette = asked_ahead(declared.colours)
    scale = heatmaps.speedup_scale([0.02, 40.0])
    shades = [heatmaps.winner_colour(palette, name, margin) for name in palette for margin in MARGINS]
    shades += [scale.colour(speedup) for speedup in (0.02, 0.1, 0.5, 0.98, 1.0, 1.3, 8.0, 40.0)]
    shades += [heatmaps.FAILED_COLOUR[theme], heatmaps.NOTHING_COLOUR[theme]]
    digits = "#000000" if theme == "light" else "#ffffff"
    assert {heatmaps.ink(shade) for shade in shades} == {digits}
    assert min(_contrast(shade, digits) for shade in shades) >= 4.5
    page = {"light": "#ffffff", "dark": "#171614"}[theme]
    assert min(_contrast(scale.colour(speedup), page) for speedup in (1 / 64, 64.0)) >= 3, "ends stand out"


def _contrast(colour: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2."""
    dark, light = sorted(heatmaps.luminance(each) + 0.05 for each in (colour, other))
    return light / dark
