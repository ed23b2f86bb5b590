"""Own runs in the layouts of the published reports."""

from dataclasses import replace

import pytest

from results import reports
from results.records import Measurement, Run, Status
from results.render.markdown import tables
from results.reports import ReportError, side_by_side
from results.reports.rendering import render_report
from runner.sweeps import SWEEPS
from tests.builders import shipped


def _own_run(speedup: float, *, sweep: str = "fa2_speedup", num_heads: int = 1) -> tuple[Run, list[Measurement]]:
    """A run in which torch_naive takes a microsecond a token and triton_fa2 is that much faster."""
    blank = Measurement(
        run_id="own", case=SWEEPS[sweep].cases()[0], implementation="", metric="latency_ms", status="ok", value=1.0
    )
    measurements = []
    for case in SWEEPS[sweep].cases():
        heads = replace(case, num_heads=num_heads, num_kv_heads=num_heads)
        for implementation, factor in (("torch_naive", 1.0), ("triton_fa2", speedup), ("torch_sdpa_flash", 50.0)):
            for mode in ("fwd", "bwd", "fwd_bwd"):
                for timing, slower in (("kernel", 1.0), ("eager", 7.0)):
                    value = case.seqlen_q / 1000 / factor * slower
                    measurements.append(
                        replace(
                            blank,
                            case=heads,
                            implementation=implementation,
                            mode=mode,
                            timing=timing,
                            value=value,
                            mean=2 * value,
                            std=0.5,
                        )
                    )
    return Run(run_id="own", source="local", gpu_name="NVIDIA H200"), measurements


@pytest.mark.parametrize("name", ["flashtile_a100", "performance_guide"])
@pytest.mark.parametrize("unsaid", ["batch", "seqlen_q"])
def test_numbers_that_do_not_say_their_shape_stand_in_no_table(name: str, unsaid: str) -> None:
    run, measurements = _own_run(4.0)
    vague = [replace(m, case=replace(m.case, **{unsaid: None})) for m in measurements]
    with pytest.raises(ReportError, match="The run has no number for this report's tables"):
        render_report(name, [(run, vague)])


def test_a_report_of_layers_says_what_a_run_of_the_operator_lacks() -> None:
    for name in ("attention_layers_a100", "flashtile_a100"):
        with pytest.raises(ReportError, match="It needs the cases of the report and .*triton_fa2"):
            render_report(name, [_own_run(4.0)])


def test_an_own_run_stands_in_the_layout_of_fa2_rtx4060() -> None:
    (table,) = tables(render_report("fa2_rtx4060", [_own_run(4.0)]))
    assert table.header == reports.get("fa2_rtx4060").grids[0].header and len(table.rows) == 56
    assert table.rows[1][:4] == ("128", "16", "fp32", "0.1280") and table.rows[1][6:] == (
        *["0.0320"] * 3,
        *["4.0x"] * 3,
    )


def test_an_own_cell_without_a_number_shows_its_status_and_no_speedup() -> None:
    run, measurements = _own_run(4.0)
    failed = [
        replace(m, status=Status.OUT_OF_RESOURCES, value=None, mean=None, std=None)
        if m.implementation == "triton_fa2" and m.case.head_dim == 128
        else m
        for m in measurements
    ]
    (table,) = tables(render_report("fa2_rtx4060", [(run, failed)]))
    assert table.rows[6][6:] == ("OOR", "OOR", "OOR", "—", "—", "—")


def test_a_run_that_failed_everywhere_shows_so() -> None:
    run, measurements = _own_run(4.0)
    failed = [replace(m, status=Status.OOM, value=None, mean=None, std=None) for m in measurements]
    (table,) = tables(render_report("fa2_rtx4060", [(run, failed)]))
    assert len(table.rows) == 56 and set(table.rows[0][3:]) == {"OOM", "—"}


def test_own_timings_are_never_mixed() -> None:
    run, measurements = _own_run(4.0)
    eager = [m for m in measurements if m.timing == "eager"]
    text = render_report("fa2_rtx4060", [(run, eager)])
    assert "Timing: eager" in text and tables(text)[0].rows[0][3] == "0.8960"
    assert "Timing: kernel" in render_report("fa2_rtx4060", [(run, measurements)])


def test_own_settings_that_the_table_does_not_tell_apart_get_a_table_each() -> None:
    run, one = _own_run(4.0)
    _, sixteen = _own_run(2.0, num_heads=16)
    text = render_report("fa2_rtx4060", [(run, [*one, *sixteen])])
    assert [table.rows[0][9] for table in tables(text)] == ["4.0x", "2.0x"]
    assert "num_heads=16" in text


def test_an_own_run_stands_in_the_layout_of_torch_vs_triton_with_means() -> None:
    (table,) = tables(render_report("torch_vs_triton", [_own_run(4.0, sweep="torch_vs_triton")]))
    assert len(table.rows) == 48
    assert table.rows[1] == ("triton_fa2", "bfloat16", "128", "16", "1", "True", *["0.0640", "0.5000"] * 3)


def test_a_run_that_says_no_timing_and_keeps_the_published_names_is_rendered_too() -> None:
    run, measurements = shipped("published-torch_vs_triton")
    text = render_report("torch_vs_triton", [(replace(run, source="upload", report=None), measurements)])
    assert "Timing: not stated.\n" in text and "\n\n\n" not in text
    assert tables(text)[0].rows[0][:7] == ("torch", "bfloat16", "128", "16", "1", "True", "0.3546")


def test_an_own_layer_run_stands_in_the_layout_of_attention_layers() -> None:
    run, measurements = shipped("published-attention_layers_a100")
    names = {"torch": "torch_naive", "triton": "triton_fa2", "flash": "torch_sdpa_flash"}
    own = [
        replace(m, run_id="own", implementation=names[m.implementation], origin=None, printed=None)
        for m in measurements
        if m.metric == "latency_ms"
    ]
    text = render_report("attention_layers_a100", [(replace(run, run_id="own", report=None), own)])
    assert len(tables(text)) == 15
    assert tables(text)[0].rows[0] == ("Forward", "1.5461", "0.9185", "**0.4836**", "**3.20x** (Flash)")
    bold = [[cell.startswith("**") for cell in row[1:4]] for table in tables(text) for row in table.rows]
    assert all(sum(cells) == 1 for cells in bold), "the least time of each row, as the report has it"


def test_the_settings_of_an_own_report_are_what_all_its_cases_share() -> None:
    text = render_report("fa2_rtx4060", [_own_run(4.0)])
    assert "**Settings**: level=op, subject=attention, batch=1, num_heads=1, num_kv_heads=1, causal=True" in text


def test_under_its_tables_an_own_report_has_what_the_run_says_to_the_claims() -> None:
    printed = [shipped("published-fa2_rtx4060")]
    own, claims = tables(side_by_side.render_own("fa2_rtx4060", printed, [_own_run(4.0)]))
    assert own.header[0] == "seq_len" and claims.header == ("Where", "Figure")
    assert [row[0] for row in claims.rows] == [f"Key Observations / {number}" for number in range(1, 7)]
    assert claims.rows[4][1].endswith(" / 7 of 7 cases ran")


def test_a_run_with_other_cases_is_refused_with_what_it_needs() -> None:
    with pytest.raises(ReportError, match="no number for this report's tables .*torch_naive"):
        render_report("performance_guide", [_own_run(4.0)])


def test_the_bold_rule_of_fa2_rtx4060_is_the_one_that_it_prints_by() -> None:
    _, rows = shipped("published-fa2_rtx4060")
    cells = [m for m in rows if m.metric == "speedup" and m.value and (m.origin or "").startswith("Results Table")]
    assert len(cells) > 140
    odd = [m.origin for m in cells if m.printed.startswith("**") != (m.case.seqlen_q >= 4096 and m.value >= 2.0)]
    assert odd == []


def test_an_own_run_has_the_bold_speedups_of_the_report() -> None:
    (table,) = tables(render_report("fa2_rtx4060", [_own_run(4.0)]))
    bold = {row[0] for row in table.rows if row[-1].startswith("**")}
    assert bold == {"4096", "8192"}
