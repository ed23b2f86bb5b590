"""What all charts share: marks, names, and colours that stand out in both themes (WCAG 2.2, 1.4.11 and 1.4.3)."""

import itertools
import re
import tomllib

import pytest

from pages.ui.draw import charts, colours
from pages.ui.draw.colours import BACKGROUNDS, MARK_CONTRAST, TEXT_CONTRAST, contrast
from pages.ui.draw.titles import ChartTitle
from pages.ui.shell import dashboard
from results.implementations import facts_of, known_names
from tests.pages.conftest import ROOT


def test_marks_differ_among_implementations_of_a_level_and_own_kernels_stand_first():
    of_op = [name for name in known_names() if facts_of(name).colour]
    assert len({colours.symbol(name) for name in of_op}) == len(of_op)
    names = ["torch_naive", "somebody", "triton_fa2", "torch_sdpa_auto", "flash_attn_4", "torch_sdpa_flash"]
    expected = "triton_fa2 flash_attn_4 somebody torch_sdpa_auto torch_sdpa_flash torch_naive"
    assert colours.ordered(names) == expected.split()


def test_labels_at_the_ends_of_lines_keep_apart_and_in_order():
    shares = [0.5, 0.12, 0.11, 0.1]
    placed = charts._spread_out(shares, 0.05)
    assert placed == sorted(placed, reverse=True)
    assert placed[0] == 0.5
    assert max(charts._spread_out([0.9] * 4, 0.1)) == 1, "Plotly draws nothing above the axis"
    assert min(above - below for above, below in itertools.pairwise(placed)) == pytest.approx(0.05)


def test_a_picture_says_its_slice_in_its_title_and_file_name_and_shows_names_from_files_as_text():
    about = ("NVIDIA H200", "causal mask", "forward", "16384 tokens, hidden 2048", "kernel time")
    title = ChartTitle("% of data-sheet peak by seqlen", about, "fa_paper, 2026-11-22")
    assert title.lines == [
        "NVIDIA H200 · causal mask · forward",
        "16384 tokens, hidden 2048 · kernel time · fa_paper, 2026-11-22",
    ]
    assert title.file_name.startswith("attnbench-percent-of-data-sheet-peak-by-seqlen-nvidia-h200-causal-mask-forward")
    assert title.file_name.endswith("fa_paper-2026-11-22")
    assert "<img" not in ChartTitle("<img src=x>", ("<img>",)).layout["text"]


DECLARED = [*filter(None, (facts_of(name).colour for name in known_names()))]


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_every_color_stands_out_and_every_text_can_be_read(theme, monkeypatch):
    known = [*colours.SPARE_COLOURS, colours.EMPTY_COLOUR, *DECLARED]
    for least in (MARK_CONTRAST, TEXT_CONTRAST):
        drawn = [colours.legible(colour, theme, least) for colour in known]
        assert min(contrast(colour, BACKGROUNDS[theme]) for colour in drawn) >= least
    scale = colours.SLOWER_TO_FASTER[theme]
    assert min(contrast(end, BACKGROUNDS[theme]) for end in (scale[0], scale[-1])) >= MARK_CONTRAST
    monkeypatch.setattr(colours, "theme", lambda: theme)
    scale = colours.speedup_scale([0.02, 40.0])
    shades = [scale.colour(2 ** (step / 4)) for step in range(-28, 29)]
    shares = colours.share_scale()["colours"]
    palette = {colour: colours.legible(colour, theme) for colour in [*colours.SPARE_COLOURS, *DECLARED]}
    winners = [colours.winner_colour(palette, name, lead) for name in palette for lead in (None, 1.0, 1.2, 2.0)]
    for colour in [*shades, *shares, *winners, colours.NOTHING_COLOUR[theme], colours.EMPTY_COLOUR]:
        assert contrast(colours.ink(colour), colour) >= TEXT_CONTRAST, colour
    assert len({colours.ink(colour) for colour in [*shades, *winners]}) == 1, "one color of digits suits a whole map"
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert contrast(settings["theme"][theme]["primaryColor"], BACKGROUNDS[theme]) >= TEXT_CONTRAST
    for colour in re.findall('fill="(.*?)"', dashboard.LOGO):
        assert contrast(colour, BACKGROUNDS[theme]) >= MARK_CONTRAST


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert colours.legible("#c1121f", "light") == "#c1121f", "a color with enough contrast stays as it is"


def test_a_winner_is_paler_the_smaller_its_lead_and_a_speedup_scale_is_as_wide_as_it_must_be(monkeypatch):
    monkeypatch.setattr(colours, "theme", lambda: "light")
    shades = [colours.winner_colour({"a": "#404040"}, "a", margin) for margin in (1.0, 1.2, 1.5, 9.0, None)]
    light = [colours.luminance(shade) for shade in shades]
    assert light[0] > light[1] > light[2] == light[3] == light[4]
    scale = colours.speedup_scale([None, 0.4, 1.1])
    assert (scale.limit, scale.ticks) == (4, ["1/4×", "1/2×", "1×", "2×", "4×"])
    ends = colours.SLOWER_TO_FASTER["light"]
    assert [scale.colour(speedup) for speedup in (0.01, 1.0, 100.0)] == [ends[0], ends[3], ends[-1]]
    assert [colours.share_colour(percent) for percent in (-1, 0, 100, 300)] == [
        *[colours.LESS_TO_MORE["light"][0]] * 2,
        *[colours.LESS_TO_MORE["light"][-1]] * 2,
    ]
