"""Presets are offered where there are numbers for them, and set what they say."""

from pages.ui.filters.offers import offered
from tests.cases import cases

CHOICES = cases(__file__, "CHOICES")
WINDOW = CHOICES | {"seqlen": [("4096", 2)], "mode": [("fwd", 2)], "shape": [("B1 H32", 2)]}


def here(choices):
    """What is offered where the causal mask alone has numbers."""
    return offered("op", ["causal"], {"causal": choices}.__getitem__)


def test_a_preset_sets_the_shape_or_the_lengths_that_are_there():
    title = "Training, 16k tokens"
    usual = {"mask": "causal", "mode": "fwd_bwd", "dtype": ["bfloat16"]}
    assert here(CHOICES)[title] == usual | {"shape": "16384 tokens, hidden 2048", "seqlen": []}
    assert title not in here(CHOICES | {"shape": [("B1 H1", 9)]})
    assert here(CHOICES)["Training, long"] == usual | {"seqlen": ["16384"]}
    assert not any(title in ("fp16", "fp32", "With host overhead") for title in here(CHOICES))


def test_a_preset_of_windows_sets_the_mask_and_one_of_whole_attention_a_mask_that_serves():
    by_mask = {"causal window 1024": WINDOW, "causal": CHOICES, "full": CHOICES}
    for shown in (["causal", "full", "causal window 1024"], ["causal window 1024", "causal", "full"]):
        found = offered("op", shown, by_mask.__getitem__)
        window = {"mask": "causal window 1024", "mode": "fwd", "dtype": ["bfloat16"], "seqlen": []}
        assert found["Window"] == window
        assert "Window, training" not in found
        assert found["Training, long"]["mask"] == "causal"
    by_mask = {"full": CHOICES, "causal": CHOICES}
    assert offered("op", ["full", "causal"], by_mask.__getitem__)["Training, long"]["mask"] == "full"
    assert not any("Window" in title for title in offered("op", ["full", "causal"], by_mask.__getitem__))
