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
from tests.cases import cases

PUBLISHED = [
    (folder.run(), folder.read()[0])
    for folder in journal.folders_in(journal.REPOSITORY / "results" / "published")
    if folder.run().report
]


# of attention_layers_a100 above_peak: the operations of projections and weight gradients counted
CAUGHT = cases(__file__, "CAUGHT")
SENTENCES = cases(__file__, "SENTENCES")


@pytest.mark.parametrize("report", sorted({run.report for run, _ in PUBLISHED}))
def test_the_published_reports_are_caught_at_what_is_wrong_in_them(report):
    findings = check([(run, rows) for run, rows in PUBLISHED if run.report == report])
    assert Counter(finding.rule for finding in findings) == CAUGHT[report]
    for sentence in SENTENCES.get(report, ()):
        assert any(sentence in finding.sentence for finding in findings), sentence


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "PUBLISHED", home / "shipped")  # reports alone, as runs take long to read
    journal.PUBLISHED.mkdir()
    for folder in (journal.REPOSITORY / "results" / "published").glob("published-*"):
        (journal.PUBLISHED / folder.name).symlink_to(folder)
    run = replace(H200, created="2026-11-21T08:00:00Z")
    RunFolder.create(home, run, [row(ms_for(1200)), *(row(1.0, case=at(s, batch=1)) for s in (128, 256, 512, 1024))])
    sound = [row(ms_for(700)), row(ms_for(500, 2.5), mode="bwd")]
    RunFolder.create(home, replace(run, run_id="r2"), [replace(m, run_id="r2") for m in sound])
    return home


def test_the_command_counts_by_rule_shows_the_first_and_names_what_is_unknown(home, capfd):
    assert main(["check", "r1", "fa2_rtx4060"]) == 0
    out = capfd.readouterr().out
    assert "r1: 2 findings" in out
    assert "impossible, faster than the device can be (above_peak): 1, as: x fwd (batch 2" in out
    assert "(not_the_sum): 29" in out
    assert len([line for line in out.splitlines() if line.startswith("  ")]) == 8, "a line a rule and run"
    assert "torch_vs_triton" not in out
    assert main(["check", "fa2_rtx4060", "--all"]) == 0
    assert capfd.readouterr().out.count("    - ") == 52
    assert main(["check", "r9"]) == 1
    assert "There is no run or report 'r9'" in capfd.readouterr().err


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
