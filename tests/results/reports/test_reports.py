"""Published reports: every printed number ships as a measurement."""

import json
from collections import Counter

import pytest

from results import reports
from results.metrics import METRICS
from results.records import Measurement, Run, Status, run_from_json
from results.render.markdown import tables
from results.reports import ReportError
from results.reports.layout import shipped_notes
from results.reports.rendering import render_report
from tests.builders import COUNTS, PUBLISHED, shipped


def _report(name: str) -> list[tuple[Run, list[Measurement]]]:
    runs = [shipped(run_id) for run_id in COUNTS]
    return [(run, measurements) for run, measurements in runs if run.report == name]


def test_every_report_is_found_by_its_name_and_no_other_run_calls_itself_one() -> None:
    assert reports.names() == tuple(sorted({shipped(run_id)[0].report for run_id in COUNTS}))
    with pytest.raises(ReportError, match="Unknown report 'fa3'. Available: attention_layers_a100, fa2_rtx4060"):
        reports.get("fa3")
    runs = [run_from_json(json.loads(path.read_text(encoding="utf-8"))) for path in PUBLISHED.glob("*/run.json")]
    assert {run.run_id for run in runs if run.report} == set(COUNTS)


@pytest.mark.parametrize(("run_id", "count"), COUNTS.items())
def test_every_shipped_run_has_all_its_numbers_each_with_a_place_of_its_own(run_id: str, count: int) -> None:
    run, measurements = shipped(run_id)
    assert (run.run_id, run.source, len(measurements)) == (run_id, "published", count)
    assert len({m.origin for m in measurements}) == len({m.measurement_id for m in measurements}) == count
    assert all(m.run_id == run_id and m.printed and m.metric in METRICS and m.timing is None for m in measurements)
    assert all(m.note for m in measurements if m.status is not Status.OK)


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


def test_words_of_a_report_ship_as_notes() -> None:
    (table,) = [note for note in shipped_notes("performance_guide") if note.header == ("Feature", "FA1", "FA2", "FA3")]
    assert table.rows[-1] == ("Work partitioning", "Basic", "Advanced", "Optimal")
    assert any("max_memory_allocated" in line for note in shipped_notes("flashtile_a100") for line in note.lines)
