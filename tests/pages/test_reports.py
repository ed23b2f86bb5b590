"""The page Reports: published tables beside own runs, and what is taken away."""

import re

import pandas as pd
import pytest
import streamlit as st

from pages.ui.draw import charts
from pages.ui.reports import chart, choose, sections
from results import reports
from results.__main__ import main
from results.files import journal
from results.render import svg as figures
from results.reports import side_by_side
from results.reports.layout import Note, shipped_notes
from tests.pages.conftest import opened, shown

OWN = max(f.run_id for f in journal.published_folders() if f.run().sweep.get("name") == "fa2_speedup")
pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture
def page(shared_home):
    return opened("reports")


def _open(page, report, *beside):
    page.pills(key="report").set_value(report).run()
    page.multiselect(key=f"beside_{report}").set_value(list(beside)).run()
    return page


def _fact(page, label):
    """The number of a tile, and the words below it."""
    whole = "".join(piece.proto.body for piece in page.get("html"))
    return re.search(rf'<dt>{label} .*?</dt><dd>(.*?)</dd>(?:<dd class="below">(.*?)</dd>)?', whole).groups()


@pytest.mark.slow
def test_every_report_begins_beside_the_runs_that_fill_it_best_with_its_findings(page):
    for report in reports.names():
        page.pills(key="report").set_value(report).run()
        theirs = reports.get(report).implementations
        baseline = next(own for name, own in theirs.items() if name in ("torch", "naive", "standard"))
        assert baseline in _implementations(page.multiselect(key=f"beside_{report}").value[0]), report
        assert not _fact(page, "Rows with both")[0].startswith("0 of ")
        assert reports.get(report).label in shown(page)
        assert "doubtful" in _fact(page, "Impossible")[1]


def test_a_report_alone_or_beside_several_runs_says_which_fill_it_and_what_is_open(page):
    _open(page, "performance_guide")
    rows, more = _fact(page, "Rows with both")
    assert rows.startswith("0 of ") and "more by formula" in more
    assert "Values as printed." in shown(page)
    _open(page, "performance_guide", "h200-fa_paper-full", "h200-training")
    ours = "Ours: h200-fa_paper-full, bfloat16, full mask", "Ours: h200-training, bfloat16"
    assert all(words in shown(page) for words in ours)
    _open(page, "performance_guide", "h200-fa_paper-full")
    assert "no run has the shape" in shown(page)
    assert "Each cell: published / ours." in shown(page) and "Bold: the best of ours in its row." not in shown(page)
    assert any("run generation --set subject=llama2-7b --set context=512" in code.value for code in page.code)


def test_each_report_begins_with_the_runs_that_fit_it_whatever_stood_beside_the_one_before(page):
    page.multiselect(key="beside_fa2_rtx4060").set_value([]).run()
    page.pills(key="report").set_value("torch_vs_triton").run()
    assert page.multiselect(key="beside_torch_vs_triton").value == ["h200-torch_vs_triton"]
    assert _fact(page, "Rows with both")[0] == "51 of 51"


def test_a_link_from_when_reports_shared_a_parameter_keeps_its_meaning(page):
    for run, chosen in ((OWN, [OWN]), ("none", [])):
        page.query_params["beside"] = run
        assert page.run().multiselect(key="beside_fa2_rtx4060").value == chosen


def test_who_a_run_lacks_is_not_stood_in_for_by_another(page):
    runs = (folder.run_id for folder in journal.published_folders())
    page = _open(page, "performance_guide", next(run for run in runs if run.startswith("h200") and "peers" in run))
    mapped = {box.key: box.value for box in page.selectbox if str(box.key).startswith("place_")}
    assert mapped["place_performance_guide_standard"] == choose.NOBODY
    assert "standard = not measured" in shown(page)


def _implementations(run):
    folder = next(folder for folder in journal.published_folders() if folder.run_id == run)
    return {measurement.implementation for measurement in folder.read()[0]}


def test_each_cell_holds_both_numbers_and_another_of_ours_can_take_the_rivals_place(page):
    _open(page, "fa2_rtx4060", OWN)
    table = page.table[0].value.map(lambda text: str(text).replace("\\", "").replace("\u00a0", " "))
    row = table[(table["seq\\_len"] == "128") & (table["d"] == "128") & (table["dtype"] == "bf16")].iloc[0]
    assert re.fullmatch(r"OOM / 0\.\d{4}", row["TR fwd (ms)"])
    assert re.fullmatch(r"— / \d+\.\dx", row["Fwd Speedup"])
    assert _fact(page, "Rows with both")[0] == "62 of 62"
    before = page.table[0].value["TR fwd (ms)"].iloc[0]
    page.selectbox(key="place_fa2_rtx4060_triton_fa2").select("torch_sdpa_flash").run()
    assert page.table[0].value["TR fwd (ms)"].iloc[0] != before
    assert "triton_fa2 = torch_sdpa_flash" in shown(page)


def test_the_numbers_sort_as_numbers_and_say_own_over_printed(page):
    _open(page, "torch_vs_triton", OWN)
    page.segmented_control(key="report_view").set_value("Numbers").run()
    table = page.dataframe[0].value
    assert pd.api.types.is_float_dtype(table["printed"])
    both = table.dropna(subset=["printed", "own"])
    assert len(both) == 144
    assert (both["own"] / both["printed"] - both["own / printed"]).abs().max() < 1e-9


def test_a_report_has_the_chart_of_its_own_numbers_with_and_without_a_run(page):
    alone, beside = choose.Choice("fa2_rtx4060"), choose.Choice("fa2_rtx4060", (OWN,))
    printed, both = (chart.points(None, choice) for choice in (alone, beside))
    assert not any(point.ours for point in printed) and any(point.ours for point in both)
    forward = [p for p in both if (p.metric, p.mode, p.dtype) == ("latency_ms", "fwd", printed[0].dtype)]
    traces = charts.figure(chart.panels(forward, "latency_ms")).data
    dashes = {(trace.name, trace.line.dash) for trace in traces}
    assert dashes >= {("torch, printed", "dash"), ("torch, ours", "solid"), ("triton_fa2, ours", "solid")}
    assert len({trace.xaxis for trace in traces}) == len({point.head_dim for point in forward})
    _open(page, "fa2_rtx4060")
    page.segmented_control(key="report_view").set_value("Chart").run()
    assert "Dashed: as printed." in shown(page)
    assert len(page.get("plotly_chart")) == 1


def test_words_of_a_report_are_a_quote_and_a_setting_is_said_in_words():
    setting = "subject=attention, num_kv_heads=32, dtype=bfloat16, causal=False, window_size=0, inputs=normal"
    assert sections.setting_words(setting) == "32 kv heads, bfloat16, full mask"
    assert sections.setting_words("num_heads=1") == "1 head"
    assert sections.setting_words("subject=mha, batch=2, from run-a") == "mha, batch 2, from run-a"
    code = Note("Use", lines=("# Saves ~50% compute", "model = FlashAttentionV2(512, 8, causal=True)"))
    assert sections.quote(code).splitlines()[2:4] == ["> ```", "> # Saves ~50% compute"]
    said = sections.quote(Note("", lines=("Faster.", "-", "# Title"))).splitlines()
    assert said == ["> Faster.", "> \\-", "> \\# Title"]
    for report in reports.names():
        for note in shipped_notes(report):
            assert all(line.startswith(">") for line in sections.quote(note).splitlines())


def test_every_report_has_a_chart_and_one_of_configurations_bars_of_each():
    found = [p for p in chart.points(None, choose.Choice("attention_layers_a100")) if p.mode == "fwd"]
    bars = charts.figure(chart.bars([p for p in found if p.metric == "latency_ms"], "latency_ms")).data
    assert {bar.name for bar in bars} == {"torch, printed", "triton, printed", "flash, printed"}
    assert {bar.marker.pattern.shape for bar in bars} == {"/"}
    assert all(len(bar.x) == len(set(bar.x)) > 10 for bar in bars)
    for report in reports.names():
        assert len(chart.points(None, choose.Choice(report))) > 10


def test_a_run_with_none_of_the_rows_says_what_is_needed(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(st, "info", lambda words, **_: said.append(words))
    monkeypatch.setattr(st, "page_link", lambda *_, **__: None)
    printed = side_by_side.sections("performance_guide", side_by_side.published("performance_guide"))
    choice = choose.Choice("performance_guide", ("run-a",), (("standard", "torch_naive"),))
    sections.coverage(printed, [], choice)
    assert "none of this report's rows" in said[0]
    assert "torch\\_naive" in said[0]


def test_findings_and_words_have_views_of_their_own(page):
    _open(page, "fa2_rtx4060")
    page.segmented_control(key="report_view").set_value("Findings").run()
    found = page.dataframe[0].value
    assert found["count"].sum() > 10 and found["sentence"].str.contains("less than its bwd alone").any()
    page.segmented_control(key="report_view").set_value("In words").run()
    assert "> **" in shown(page) and "Key Observations / 4: bf16 is generally faster than fp32 · ours: " in shown(page)


@pytest.mark.slow
def test_the_html_report_is_what_the_command_writes_with_its_charts_and_needs_no_network(tmp_path):
    pairs = (("torch", "torch_naive"), ("triton_fa2", "triton_fa2"))
    text = sections.as_html(choose.Choice("fa2_rtx4060", (OWN,), pairs))
    command = ["render", "--report", "fa2_rtx4060", "--run", OWN, "--format", "html"]
    assert main([*command, "--output", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").read_text() == text
    assert text.count("<figure>") == text.count("<svg") == 2
    assert "<script" not in text
    assert re.search(r"<td>0\.0534 / 0\.\d{4}</td>", text)


def test_a_chart_has_a_point_for_each_cell_with_both_numbers_and_names_its_columns():
    choice = choose.Choice("fa2_rtx4060", (OWN,))
    found = sections.sections(None, choice)
    table = sections.numbers(found)
    points = table[(table["metric"] == "speedup") & (table["own"] > 0) & (table["printed"] > 0)]
    svg = figures.own_against_printed(found)[0]
    assert svg.count("<title>printed") == len(points) > 100
    assert ">E2E Speedup</text>" in svg
    width = float(re.search(r'viewBox="0 0 (\d+)', svg).group(1))
    assert max(map(float, re.findall(r' x="([\d.]+)"', svg))) < width
