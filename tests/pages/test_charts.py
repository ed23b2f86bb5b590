"""What all charts share: marks, colours, axes and names."""

import itertools

import pytest

from pages.ui.draw import charts, colours
from pages.ui.draw.titles import ChartTitle
from results.implementations import facts_of, known_names


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
