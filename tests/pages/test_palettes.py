"""Every colour that the pages draw with, against both themes: marks 3:1, text 4.5:1 (WCAG 2.2, 1.4.11 and 1.4.3)."""

import tomllib

import pytest
from plotly.colors import sample_colorscale, unlabel_rgb

from pages.ui.draw import charts, heatmaps
from pages.ui.draw.charts import BACKGROUNDS, MARK_CONTRAST, TEXT_CONTRAST, contrast
from pages.ui.shell import dashboard
from results.implementations import facts_of, known_names
from tests.pages.conftest import ROOT

DECLARED = [*filter(None, (facts_of(name).colour for name in known_names()))]


def _hex(colour: str) -> str:
    return colour if colour.startswith("#") else "#" + "".join(f"{round(part):02x}" for part in unlabel_rgb(colour))


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_marks_and_names_of_implementations_stand_out(theme):
    colours = [*charts.SPARE_COLOURS, charts.EMPTY_COLOUR, *DECLARED]
    for least in (MARK_CONTRAST, TEXT_CONTRAST):
        drawn = [charts.legible(colour, theme, least) for colour in colours]
        assert min(contrast(colour, BACKGROUNDS[theme]) for colour in drawn) >= least


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_the_best_and_worst_cells_of_a_map_stand_out(theme):
    scale = heatmaps.SLOWER_TO_FASTER[theme]
    assert min(contrast(_hex(end), BACKGROUNDS[theme]) for end in (scale[0], scale[-1])) >= MARK_CONTRAST


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_the_text_of_a_cell_can_be_read_on_its_colour(theme, monkeypatch):
    monkeypatch.setattr(heatmaps, "theme", lambda: theme)
    shades = sample_colorscale(list(heatmaps.SLOWER_TO_FASTER[theme]), [step / 40 for step in range(41)])
    shares = heatmaps.share_scale()["colours"]
    palette = {colour: charts.legible(colour, theme) for colour in [*charts.SPARE_COLOURS, *DECLARED]}
    winners = [heatmaps.winner_colour(palette, name, lead) for name in palette for lead in (None, 1.0, 1.2, 2.0)]
    for colour in map(_hex, [*shades, *shares, *winners, heatmaps.NOTHING_COLOUR[theme], charts.EMPTY_COLOUR]):
        assert contrast(heatmaps.ink(colour), colour) >= TEXT_CONTRAST, colour


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_the_accent_and_the_name_of_the_app_can_be_read(theme):
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert contrast(settings["theme"][theme]["primaryColor"], BACKGROUNDS[theme]) >= TEXT_CONTRAST
    for colour in dashboard.NAME_COLOURS:
        assert contrast(colour, BACKGROUNDS[theme]) >= MARK_CONTRAST
