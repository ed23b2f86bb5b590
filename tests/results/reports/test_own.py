"""Own runs in the layouts of the published reports."""

from dataclasses import replace

import pytest

from results.records import Status
from results.render.markdown import tables
from results.reports import ReportError
from results.reports.rendering import render_report
from tests.builders import shipped
from tests.results.reports.made_up import BESIDE, RECORDED, own_run, shown


@pytest.mark.parametrize("name", ["flashtile_a100", "performance_guide"])
@pytest.mark.parametrize("unsaid", ["batch", "seqlen_q"])
def test_numbers_that_do_not_say_their_shape_stand_in_no_table(name: str, unsaid: str) -> None:
    run, measurements = own_run(4.0)
    vague = [replace(m, case=replace(m.case, **{unsaid: None})) for m in measurements]
    with pytest.raises(ReportError, match="The run has no number for this report's tables"):
        render_report(name, [(run, vague)])


def test_a_run_without_the_cases_of_a_report_is_refused_with_what_it_needs() -> None:
    for name in ("attention_layers_a100", "flashtile_a100"):
        with pytest.raises(ReportError, match="It needs the cases of the report and .*triton_fa2"):
            render_report(name, [own_run(4.0)])
    with pytest.raises(ReportError, match="no number for this report's tables .*torch_naive"):
        render_report("performance_guide", [own_run(4.0)])


def test_cells_that_failed_show_their_status_and_no_speedup() -> None:
    run, measurements = own_run(4.0)
    failed = [
        replace(m, status=Status.OUT_OF_RESOURCES, value=None, mean=None, std=None)
        if m.implementation == "triton_fa2" and m.case.head_dim == 128
        else m
        for m in measurements
    ]
    (table,) = tables(render_report("fa2_rtx4060", [(run, failed)]))
    assert table.rows[6][6:] == ("OOR", "OOR", "OOR", "—", "—", "—")
    failed = [replace(m, status=Status.OOM, value=None, mean=None, std=None) for m in measurements]
    (table,) = tables(render_report("fa2_rtx4060", [(run, failed)]))
    assert len(table.rows) == 56 and set(table.rows[0][3:]) == {"OOM", "—"}


def test_own_timings_are_never_mixed_and_settings_get_a_table_each() -> None:
    run, measurements = own_run(4.0)
    eager = [m for m in measurements if m.timing == "eager"]
    text = render_report("fa2_rtx4060", [(run, eager)])
    assert "Timing: eager" in text and tables(text)[0].rows[0][3] == "0.8960"
    assert "Timing: kernel" in render_report("fa2_rtx4060", [(run, measurements)])
    run, one = own_run(4.0)
    _, sixteen = own_run(2.0, num_heads=16)
    text = render_report("fa2_rtx4060", [(run, [*one, *sixteen])])
    assert [table.rows[0][9] for table in tables(text)] == ["4.0x", "2.0x"]
    assert "num_heads=16" in text


def test_a_run_that_says_no_timing_and_keeps_the_published_names_is_rendered_too() -> None:
    run, measurements = shipped("published-torch_vs_triton")
    text = render_report("torch_vs_triton", [(replace(run, source="upload", report=None), measurements)])
    assert "Timing: not stated.\n" in text and "\n\n\n" not in text
    assert tables(text)[0].rows[0][:7] == ("torch", "bfloat16", "128", "16", "1", "True", "0.3546")


@pytest.mark.parametrize("title", BESIDE)
def test_made_up_and_shipped_runs_are_shown_as_recorded(title: str) -> None:
    """`python -m tests.results.reports.made_up` records anew; what differs is read like code."""
    assert shown(title) == RECORDED.joinpath(f"{title}.md").read_text(encoding="utf-8")
