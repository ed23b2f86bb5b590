"""What the published reports are caught at, and the command that says so."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from results.__main__ import main
from results.checks import IMPOSSIBLE, check
from results.files import journal
from results.files.journal import RunFolder
from tests.builders import H200, at, ms_for, row

PUBLISHED = [
    (folder.run(), folder.read()[0])
    for folder in journal.folders_in(journal.REPOSITORY / "results" / "published")
    if folder.run().report
]


CAUGHT = {
    "attention_layers_a100": {
        "above_peak": 12,  # the operations of projections and weight gradients counted
        "whole_below_part": 2,
        "summary": 2,
        "best": 1,
        "cut_off": 1,
        "backward_over_forward": 15,
        "not_the_sum": 4,
    },
    "fa2_rtx4060": {
        "whole_below_part": 1,
        "summary": 2,
        "cut_off": 1,
        "backward_over_forward": 13,
        "not_the_sum": 29,
        "flat": 6,
    },
    "flashtile_a100": {"above_shared_memory": 1},
    "performance_guide": {
        "below_parts": 2,
        "time_and_tflops": 3,
        "claimed_tflops": 1,
        "share_of_peak": 1,
        "time_per_token": 10,
        "below_floor": 8,
        "below_weights": 9,
        "above_device": 2,
        "above_model_peak": 2,
    },
    "torch_vs_triton": {
        "whole_below_part": 1,
        "backward_over_forward": 4,
        "not_the_sum": 15,
        "flat": 28,
        "falls_with_work": 3,
        "within_spread": 42,
        "noisy": 85,
    },
}
SENTENCES = {
    "attention_layers_a100": [
        "summed up as 3.37 to 41.99x, but the report's own tables go from 4.43x (27.4436 / 6.2005) to 17.15x",
        "(mha_fused, batch 1, heads 32, seqlen 4096, head_dim 128) in 0.9097 ms is 1586 TFLOP/s even if causal",
    ],
    "fa2_rtx4060": ["takes 0.2387 ms, less than its bwd alone: 0.2562 ms."],
    "performance_guide": [
        "prints 740 TFLOP/s and 7.2 ms, but the case in that time is 153 TFLOP/s",
        "of which it is 61 %",
        "takes 0.15 x 512 = 76.8 ms, 64 times the 1.2 ms printed for batch 8",
        "32768 MiB as attention_memory_mb, but one score matrix of 8 x 32 x 32768 x 32768 takes 262144 MiB even at one "
        "byte a number, 524288 MiB at 16 bits (16 times that)",
        "llama2-7b, batch 1, seqlen 2048, float16) is said to take 2.1 GiB",
    ],
}


@pytest.mark.parametrize("report", CAUGHT)
def test_the_published_reports_are_caught_at_what_is_wrong_in_them(report):
    findings = check([(run, rows) for run, rows in PUBLISHED if run.report == report])
    assert Counter(finding.rule for finding in findings) == CAUGHT[report]
    for sentence in SENTENCES.get(report, ()):
        assert any(sentence in finding.sentence for finding in findings), sentence


def test_ragged_decoding_of_an_h200_is_no_lie():
    folder = RunFolder(journal.REPOSITORY / "results" / "published" / "h200-paged_decode")
    found = check([(folder.run(), folder.read()[0])])
    assert {finding.rule for finding in found} == {"within_spread"}


def test_every_report_is_held_here():
    assert {run.report for run, _ in PUBLISHED} == set(CAUGHT)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(journal, "PUBLISHED", journal.REPOSITORY / "results" / "published")
    run = replace(H200, created="2026-11-21T08:00:00Z")
    RunFolder.create(
        tmp_path, run, [row(ms_for(1200)), *(row(1.0, case=at(s, batch=1)) for s in (128, 256, 512, 1024))]
    )
    sound = [row(ms_for(700)), row(ms_for(500, 2.5), mode="bwd")]
    RunFolder.create(tmp_path, replace(run, run_id="r2"), [replace(m, run_id="r2") for m in sound])
    return tmp_path


def test_the_command_counts_by_rule_and_shows_the_first(home, capfd):
    assert main(["check", "r1", "fa2_rtx4060"]) == 0
    out = capfd.readouterr().out
    assert "r1: 2 findings" in out
    assert "impossible, faster than the device can be (above_peak): 1, as: x fwd (batch 2" in out
    assert "(not_the_sum): 29" in out
    assert len([line for line in out.splitlines() if line.startswith("  ")]) == 8, "a line a rule and run"
    assert "torch_vs_triton" not in out
    assert main(["check", "fa2_rtx4060", "--all"]) == 0
    assert capfd.readouterr().out.count("    - ") == 52


def test_findings_are_no_failure_unless_strict_and_impossible(home, capfd, monkeypatch):
    monkeypatch.setattr(journal, "PUBLISHED", home / "none")
    assert main(["check"]) == 0
    assert main(["check", "--strict"]) == 1
    assert main(["check", "r2", "--strict"]) == 0
    capfd.readouterr()
    assert main(["check", "r2"]) == 0
    assert capfd.readouterr().out == "r2: 0 findings\n"


def test_one_run_of_a_report_is_checked_against_the_others_of_it(home, capfd):
    assert main(["check", "published-performance_guide-h100", "--json"]) == 0
    findings = json.loads(capfd.readouterr().out)
    assert {finding["run_id"] for finding in findings} == {"published-performance_guide-h100"}
    assert [finding["rule"] for finding in findings] == ["time_and_tflops"] * 3
    assert all(finding["weight"] == IMPOSSIBLE for finding in findings)


def test_an_unknown_name_is_said(home, capfd):
    assert main(["check", "r9"]) == 1
    assert "There is no run or report 'r9'" in capfd.readouterr().err
