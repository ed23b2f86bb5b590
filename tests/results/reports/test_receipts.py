"""A receipt says what was claimed, what was measured, under which conditions, and how to repeat it."""

import pytest

from results.__main__ import main
from results.records import Run
from results.reports import receipts


def test_every_claim_is_listed_and_an_unknown_one_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["receipt"]) == 0
    listed = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == len(set(listed)) > 30
    assert {name.partition("/")[0] for name in listed} > {"headline", "fa2_rtx4060", "torch_vs_triton"}
    assert main(["receipt", "headline/99"]) == 1
    assert "There is no claim 'headline/99'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("claim", "words"), [("headline/10", "window of 1024"), ("fa2_rtx4060/4", "bf16 is generally")]
)
def test_a_receipt_has_claim_answer_conditions_and_command(claim: str, words: str, capsys) -> None:
    run = ["--run", "h200-window_gqa" if claim.startswith(receipts.OURS) else "h200-fa2_speedup"]
    assert main(["receipt", claim, *run]) == 0
    text, _, repeat = capsys.readouterr().out.partition("## On your GPU")
    parts = ("## Claimed", "## Measured here", "on NVIDIA H200", "torch 2.", "python -m runner run")
    assert [part for part in (words, *parts) if part not in text] == []
    needs = ("--standard", " GiB of GPU memory", "- triton_fa2 needs compute capability 8.0 or later", "--run RUN`")
    assert [part for part in needs if part not in repeat] == [] and "--device" not in repeat


def test_the_command_of_an_upload_is_not_told_to_be_run() -> None:
    runs = [(Run(source, source, command=f"{source} command"), []) for source in ("upload", "local")]
    assert [*receipts._to_repeat(runs)] == ["`local command`"]
