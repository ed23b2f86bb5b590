import pandas as pd
import pytest

from pages.ui import reporting
from results import reports
from tests.pages.conftest import shown

OWN = "h200-fa2_speedup"


@pytest.fixture
def page(app):
    return app.switch_page("pages/reports.py").run()


def _open(page, report, beside=OWN):
    page.pills(key="report").set_value(report).run()
    page.selectbox(key="beside").select(beside).run()
    return page


def _metric(page, label):
    return next(metric for metric in page.metric if metric.label == label)


@pytest.mark.parametrize("report", reports.names())
def test_every_report_is_shown_as_printed_with_its_findings(page, report):
    page.pills(key="report").set_value(report).run()
    page.selectbox(key="beside").select(reporting.ALONE).run()
    assert reports.get(report).TITLE in shown(page)
    assert "doubtful" in _metric(page, "Impossible").delta
    assert _metric(page, "Rows with both").value.startswith("0 of ")
    assert len(page.table) >= 1


def test_each_cell_holds_the_printed_and_the_own_number(page):
    _open(page, "fa2_rtx4060")
    table = page.table[0].value.map(lambda text: str(text).replace("\\", "").replace("\u00a0", " "))
    row = table[(table["seq\\_len"] == "128") & (table["d"] == "128") & (table["dtype"] == "bf16")].iloc[0]
    assert row["TR fwd (ms)"].startswith("OOM / 0.00")
    assert row["Fwd Speedup"].startswith("— / 3.")
    assert _metric(page, "Rows with both").value == "56 of 56"


def test_another_of_our_implementations_can_stand_in_the_rivals_place(page):
    _open(page, "fa2_rtx4060")
    before = page.table[0].value["TR fwd (ms)"].iloc[0]
    page.selectbox(key="place_triton_fa2").select("torch_sdpa_flash").run()
    assert page.table[0].value["TR fwd (ms)"].iloc[0] != before
    assert "triton_fa2 is torch_sdpa_flash" in shown(page)


def test_the_numbers_sort_as_numbers_and_say_own_over_printed(page):
    _open(page, "torch_vs_triton")
    page.segmented_control(key="report_view").set_value("Numbers").run()
    table = page.dataframe[0].value
    assert pd.api.types.is_float_dtype(table["printed"])
    both = table.dropna(subset=["printed", "own"])
    assert len(both) == 144
    assert (both["own"] / both["printed"] - both["own / printed"]).abs().max() < 1e-9


def test_the_chart_shows_one_point_a_cell_with_both_numbers(page):
    _open(page, "fa2_rtx4060")
    page.segmented_control(key="report_view").set_value("Chart").run()
    shown(page)
    assert len(page.get("plotly_chart")) == 1


def test_a_run_with_none_of_the_rows_says_what_is_needed(page):
    _open(page, "performance_guide")
    assert "has none of this report's rows" in shown(page)


def test_findings_and_words_have_views_of_their_own(page):
    _open(page, "fa2_rtx4060", reporting.ALONE)
    page.segmented_control(key="report_view").set_value("Findings").run()
    assert page.dataframe[0].value["finding"].str.contains("out of").any()
    page.segmented_control(key="report_view").set_value("In words").run()
    assert "Key Observations" in shown(page)


def test_the_html_report_needs_no_network_and_holds_plotly_once(page, home):
    choice = reporting.Choice("fa2_rtx4060", OWN, "published", (("torch", "torch_naive"), ("triton_fa2", "triton_fa2")))
    table = reporting.numbers(reporting.sections(None, choice))
    text = reporting.as_html(choice, table)
    assert reporting.metrics(table)[0] == "speedup"
    assert text.count("<figure>") == len(reporting.metrics(table)) == 2
    assert text.count("plotly.js v") == 1
    assert "<script src=" not in text
    assert "0.0534 / 0.0224" in text
    assert 3_000_000 < len(text) < 8_000_000
