import json

import pytest

from tests.pages.conftest import shown

H200 = "NVIDIA H200"


@pytest.fixture
def page(app):
    return app.switch_page("pages/scaling.py").run()


def _names(page, at=0):
    return [trace.get("name") for trace in json.loads(page.get("plotly_chart")[at].proto.spec)["data"]]


def test_latency_has_a_line_for_each_implementation_and_says_its_statistic(page):
    text = shown(page)
    assert {"torch_naive", "triton_fa2", "torch_sdpa_flash"} <= set(_names(page))
    assert "median of n samples" in text
    assert "p20 to p80" in text


def test_time_and_memory_per_token_are_over_batch_times_seqlen(page):
    table = page.dataframe[0].value
    row = table[(table["implementation"] == "torch_naive") & (table["seqlen"] == 256)].iloc[0]
    assert row["time_per_token_us"] == pytest.approx(4.0 * 1000 / 256)
    assert row["memory_per_token_kb"] == pytest.approx(4.0 * 256 * 1024 / 256)  # the test run takes 4 x 256 MiB there
    assert row["growth"] == pytest.approx(2.0)


def test_a_quantity_without_numbers_is_not_offered(page):
    assert "percent_of_peak" not in page.pills(key="quantity").options
    assert "percent_of_measured" not in page.pills(key="quantity").options


def test_a_failure_is_a_row_with_its_reason_and_no_point(page):
    table = page.dataframe[0].value
    failed = table[(table["implementation"] == "torch_naive") & (table["seqlen"] == 512)].iloc[0]
    assert (failed["status"], failed["note"]) == ("OOM", "too large")
    assert failed["latency_ms"] != failed["latency_ms"]


def test_a_known_device_has_its_share_of_the_peak_and_its_roof(app):
    app.selectbox(key="gpu").select(H200).run()
    page = app.switch_page("pages/scaling.py").run()
    assert "of the nominal peak" in shown(page)
    page.pills(key="quantity").set_value("roofline").run()
    assert "nominal roof" in _names(page)
    assert "NVIDIA H200 datasheet" in shown(page)
