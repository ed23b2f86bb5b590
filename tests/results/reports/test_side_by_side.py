"""Published reports beside the runs that ship."""

import pytest

from results import reports
from results.__main__ import main
from results.files import journal
from results.records import Measurement, Run, Status, attention_case
from results.render.markdown import tables
from results.reports import ReportError, side_by_side
from results.reports.rendering import render_report
from results.reports.side_by_side import speedups_beside

OWN = max(f.run_id for f in journal.published_folders() if f.run().sweep.get("name") == "fa2_speedup")


@pytest.mark.parametrize("name", reports.names())
def test_a_report_alone_holds_its_tables_to_the_letter_and_its_findings(name: str) -> None:
    printed = side_by_side.published(name)
    text = side_by_side.render(name, printed)
    whole = render_report(name, printed)
    written = {row for table in tables(text) for row in table.rows}
    assert all(row in written for table in tables(whole) for row in table.rows)
    assert f"## Findings: {len(side_by_side.findings(printed))}" in text


def test_a_run_without_any_row_is_refused_with_what_it_needs() -> None:
    case = attention_case(batch=3, num_heads=5, seqlen=77, head_dim=24, dtype="float16", causal=False)
    row = Measurement("x", case, "torch_naive", "latency_ms", Status.OK, mode="fwd", timing="kernel", value=1.0)
    with pytest.raises(ReportError, match="torch_naive, triton_fa2"):
        side_by_side.render("fa2_rtx4060", side_by_side.published("fa2_rtx4060"), [(Run("x", "local"), [row])])


def test_the_command_renders_a_report_beside_a_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    assert main(["render", "--report", "fa2_rtx4060", "--run", OWN]) == 0
    assert "the own run has 62 of 62 rows" in capsys.readouterr().out
    assert main(["render", "--report", "nope"]) == 1
    assert main(["render", "--report", "fa2_rtx4060", "--run", "nope"]) == 1
    assert "There is no run 'nope'" in capsys.readouterr().err


def _number(implementation: str, metric: str, value: float | None, **fields: object) -> Measurement:
    case = attention_case(batch=1, num_heads=1, seqlen=512, head_dim=64, dtype="bfloat16", causal=True)
    status = fields.pop("status", Status.OK)
    return Measurement("r", case, implementation, metric, status, mode="fwd", value=value, **fields)


def _row(printed: list[Measurement], own: list[Measurement]) -> str:
    return speedups_beside(printed, own, baseline="torch_naive", implementation="triton_fa2").splitlines()[2]


def test_the_own_speedup_is_of_device_times_and_a_failure_stands_where_the_number_would() -> None:
    own = [
        _number("torch_naive", "latency_ms", 3.0, timing="kernel"),
        _number("triton_fa2", "latency_ms", 1.0, timing="kernel"),
        _number("torch_naive", "latency_ms", 99.0, timing="eager"),
        _number("triton_fa2", "latency_ms", 1.0, timing="eager"),
    ]
    printed = [_number("triton_fa2", "speedup", 1.25, baseline="torch")]
    assert _row(printed, own) == "| bfloat16, 64 | 1.2× / 3.0× |"
    out = Status.OUT_OF_RESOURCES
    printed = [
        _number("triton_fa2", "latency_ms", None, status=out),
        _number("triton_fa2", "speedup", None, baseline="torch", status=Status.SKIPPED),
    ]
    own = [_number("triton_fa2", "latency_ms", None, status=Status.OOM, timing="kernel")]
    assert _row(printed, own) == "| bfloat16, 64 | shared memory / OOM |"
    assert _row(printed, []) == "| bfloat16, 64 | shared memory / not measured |"
