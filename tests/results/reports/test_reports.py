"""Published reports: every printed number ships as a measurement."""

import json
from collections import Counter

import pytest

from results import reports
from results.metrics import METRICS
from results.records import Measurement, Run, Status, run_from_json
from results.render.markdown import tables
from results.reports import ReportError
from results.reports.notes import shipped_notes
from results.reports.rendering import render_report
from tests.builders import COUNTS, PUBLISHED, shipped
from tests.cases import cases


def _report(name: str) -> list[tuple[Run, list[Measurement]]]:
    runs = [shipped(run_id) for run_id in COUNTS]
    return [(run, measurements) for run, measurements in runs if run.report == name]


def _cell(run_id: str, origin: str) -> Measurement:
    (found,) = [m for m in shipped(run_id)[1] if m.origin == origin]
    return found


def test_every_report_is_found_by_its_name() -> None:
    assert reports.names() == tuple(sorted({shipped(run_id)[0].report for run_id in COUNTS}))
    with pytest.raises(ReportError, match="Unknown report 'fa3'. Available: attention_layers_a100, fa2_rtx4060"):
        reports.get("fa3")


@pytest.mark.parametrize(("run_id", "count"), COUNTS.items())
def test_every_shipped_run_has_all_its_numbers_each_with_a_place_of_its_own(run_id: str, count: int) -> None:
    run, measurements = shipped(run_id)
    assert (run.run_id, run.source, len(measurements)) == (run_id, "published", count)
    assert len({m.origin for m in measurements}) == len({m.measurement_id for m in measurements}) == count
    assert all(m.run_id == run_id and m.printed and m.metric in METRICS and m.timing is None for m in measurements)
    assert all(m.note for m in measurements if m.status is not Status.OK)


def test_no_other_run_calls_itself_a_report() -> None:
    runs = [run_from_json(json.loads(path.read_text(encoding="utf-8"))) for path in PUBLISHED.glob("*/run.json")]
    assert {run.run_id for run in runs if run.report} == set(COUNTS)


@pytest.mark.parametrize("name", reports.names())
def test_a_rendered_report_has_every_printed_cell_in_its_table(name: str) -> None:
    runs = _report(name)
    cells = Counter(cell for table in tables(render_report(name, runs)) for row in table.rows for cell in row)
    claims = [claim.where for claim in reports.get(name).claims]
    printed = Counter(
        part
        for _, measurements in runs
        for m in measurements
        if not any(m.origin.replace("\\", "").startswith(where) for where in claims)
        for part in m.printed.split(" | ")
    )
    assert printed and not printed - cells


def test_report_fa2_rtx4060_has_56_rows_of_9_numbers() -> None:
    ((run, measurements),) = _report("fa2_rtx4060")
    table = [m for m in measurements if m.origin.startswith("Results Table")]
    assert len({m.case for m in table}) == 56
    assert Counter(m.origin.rpartition(" / ")[2] for m in table) == dict.fromkeys(
        reports.get("fa2_rtx4060").grids[0].columns, 56
    )
    assert (run.gpu_name, run.gpu_memory_mb) == ("RTX 4060 Laptop", 8192.0)
    case = table[0].case
    assert (case.batch, case.num_heads, case.window_size, case.causal) == (1, None, None, True)


def test_report_fa2_rtx4060_keeps_all_21_oom_cells_as_out_of_shared_memory() -> None:
    _, measurements = shipped("published-fa2_rtx4060")
    oom = [m for m in measurements if m.printed == "OOM"]
    assert len(oom) == 21
    assert {(m.case.head_dim, m.case.dtype, m.implementation) for m in oom} == {(128, "bfloat16", "triton_fa2")}
    assert {m.status for m in oom} == {Status.OUT_OF_RESOURCES}
    assert all("'OOM'" in m.note and "observation 5" in m.note for m in oom)
    missing = [m for m in measurements if m.printed == "—"]
    assert len(missing) == 21 and {(m.metric, m.status) for m in missing} == {("speedup", Status.SKIPPED)}


def test_report_torch_vs_triton_keeps_means_with_their_deviations() -> None:
    run, measurements = shipped("published-torch_vs_triton")
    first = measurements[0]
    assert (first.printed, first.value, first.mean, first.std) == ("0.3546 | 0.0038", 0.3546, 0.3546, 0.0038)
    assert first.statistic == "mean" and first.origin.endswith("forward_ms_mean | forward_ms_std")
    assert Counter((m.implementation, m.mode) for m in measurements) == {
        (implementation, mode): 24 for implementation in ("torch", "triton_fa2") for mode in ("fwd", "bwd", "fwd_bwd")
    }
    assert run.gpu_name is None and "Backward" not in (run.title or "")


@pytest.mark.parametrize(
    ("run_id", "origin", "printed", "status", "value"), cases(__file__, "test_a_printed_cell_is_kept_as_printed")
)
def test_a_printed_cell_is_kept_as_printed(
    run_id: str, origin: str, printed: str, status: str, value: float | None
) -> None:
    cell = _cell(f"published-{run_id}", origin)
    assert (cell.printed, str(cell.status), cell.value) == (printed, status, value)


def test_cases_have_the_fields_of_the_report_and_no_more() -> None:
    origin = "Grouped Query Attention (GQA) > Configuration 1: Batch=2, SeqLen=2048, Heads=32, KVHeads=8, HeadDim=64"
    gqa = _cell("published-attention_layers_a100", f"{origin} / Backward / Triton (ms)")
    assert (gqa.case.level, gqa.case.subject, gqa.case.num_heads, gqa.case.num_kv_heads) == ("layer", "gqa", 32, 8)
    assert (gqa.mode, gqa.case.dtype, gqa.case.causal) == ("bwd", None, None)


def test_words_of_a_report_ship_as_notes() -> None:
    (table,) = [note for note in shipped_notes("performance_guide") if note.header == ("Feature", "FA1", "FA2", "FA3")]
    assert table.rows[-1] == ("Work partitioning", "Basic", "Advanced", "Optimal")
    assert any("max_memory_allocated" in line for note in shipped_notes("flashtile_a100") for line in note.lines)
