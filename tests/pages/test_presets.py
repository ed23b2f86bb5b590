"""Presets are offered where there are numbers for them, and set what they say."""

from pages.ui.presets import offered

CHOICES = {
    "mode": [("fwd", 9), ("fwd_bwd", 9)],
    "dtype": [("bfloat16", 9), ("float16", 0)],
    "timing": [("kernel", 9)],
    "seqlen": [("512", 3), ("16384", 6)],
    "shape": [("B1 H1", 9), ("16384 tokens, hidden 2048", 4)],
}


def test_a_preset_of_a_shape_sets_that_shape_and_is_left_out_where_it_is_not():
    title = "bf16 training, 16k tokens, hidden 2048"
    assert offered(CHOICES)[title] == {
        "mode": "fwd_bwd",
        "dtype": ["bfloat16"],
        "shape": "16384 tokens, hidden 2048",
        "seqlen": [],
    }
    assert title not in offered(CHOICES | {"shape": [("B1 H1", 9)]})


def test_a_preset_of_lengths_sets_those_that_are_there_and_no_shape():
    assert offered(CHOICES)["bf16 training, long context"] == {
        "mode": "fwd_bwd",
        "dtype": ["bfloat16"],
        "seqlen": ["16384"],
    }


def test_a_dtype_or_timing_without_numbers_offers_nothing():
    assert not any(title.startswith(("fp16", "fp32")) or "host" in title for title in offered(CHOICES))
