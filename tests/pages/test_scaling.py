"""The page Scaling: latency, rates and shares of the peak by sequence length."""

import json
import re

import pandas as pd
import pytest

from pages.ui import scaling
from tests.pages.conftest import GPU, opened, shown

pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture
def page(shared_home):
    return opened("scaling", gpu=GPU)


def _names(page, at=0):
    return [trace.get("name") for trace in json.loads(page.get("plotly_chart")[at].proto.spec)["data"]]


def test_latency_has_a_line_for_each_implementation_and_says_its_statistic(page):
    text = shown(page.pills(key="quantity").set_value("latency_ms").run())
    assert {"torch_naive", "triton_fa2", "torch_sdpa_flash"} <= set(_names(page))
    assert re.search(r"median of \d+(–\d+)? samples", text)
    assert "p20 to p80" in text


def _row(page, quantity):
    table = page.pills(key="quantity").set_value(quantity).run().dataframe[0].value
    return table[(table["implementation"] == "torch_naive") & (table["seqlen"] == 256)].iloc[0]


def test_each_quantity_with_numbers_is_offered_and_those_of_a_token_are_over_batch_times_seqlen(page):
    assert not {"percent_of_peak", "percent_of_measured"} & set(page.pills(key="quantity").options)
    table = page.dataframe[0].value
    failed = table[(table["implementation"] == "torch_naive") & (table["seqlen"] == 512)].iloc[0]
    assert (failed["status"], failed["note"]) == ("OOM", "too large")
    assert failed["latency_ms"] != failed["latency_ms"]
    assert _row(page, "time_per_token_us")["time_per_token_us"] == pytest.approx(4.0 * 1000 / 256)
    row = _row(page, "memory_per_token_kb")
    assert row["memory_per_token_kb"] == pytest.approx(4.0 * 256 * 1024 / 256)  # the test run takes 4 x 256 MiB there
    assert row["growth"] == pytest.approx(2.0)


def test_a_known_device_has_its_share_of_the_peak_from_zero_and_its_roof():
    page = opened("scaling", gpu="NVIDIA H200")
    assert json.loads(page.get("plotly_chart")[0].proto.spec)["layout"]["yaxis"]["range"][0] == 0
    assert "of the data-sheet peak" in shown(page)
    assert "data-sheet peak" in _names(page)
    page.selectbox(key="quantity").set_value("roofline").run()
    (spec,) = (json.loads(each.proto.spec) for each in page.get("plotly_chart"))
    roofs = [trace for trace in spec["data"] if trace["name"] == "data-sheet roof"]
    assert [trace.get("showlegend", True) for trace in roofs].count(True) == 1 and roofs[0]["line"]["dash"] == "solid"
    assert "NVIDIA H200 data sheet" in shown(page)


def test_the_headline_names_the_fastest_in_the_precision_of_its_dtype(monkeypatch):
    said = []
    monkeypatch.setattr(scaling.st, "markdown", said.append)
    row = {"run_id": "r", "dtype": "bfloat16", "seqlen_q": 1024, "percent_of_peak": 40.0, "percent_of_measured": None}
    rates = {"mine": 400.0, "mine_fp8": 800.0, "slow": None}
    table = pd.DataFrame([row | {"implementation": name, "tflops": rate} for name, rate in rates.items()])
    scaling.headline(table)
    scaling.headline(table[table["implementation"] == "mine_fp8"])
    scaling.headline(table[table["implementation"] == "slow"])
    assert said == [
        "## Highest at bfloat16 precision: mine, 400 TFLOP/s at seqlen 1k (40 % of the data-sheet peak)",
        "## Highest at bfloat16 precision: mine\\_fp8, 800 TFLOP/s at seqlen 1k (40 % of the data-sheet peak)",
    ]


def test_time_is_guided_by_the_operations_of_the_shapes():
    rows = pd.DataFrame({"seqlen_q": [512, 1024], "batch": [2, 1], "flops": [1.0, 2.0], "latency_ms": [1.0, 3.0]})
    same_batch = rows.assign(batch=1, flops=[1.0, 4.0])
    rows["time_per_token_us"] = same_batch["time_per_token_us"] = rows["latency_ms"]
    names = [guide.name for each in (rows, same_batch) for guide in scaling._guides(each, "latency_ms")]
    assert names == ["∝ n", "∝ n²"]
    assert [guide.name for guide in scaling._guides(same_batch, "time_per_token_us")] == ["∝ n"]
    higher = same_batch.assign(latency_ms=[2.0, 6.0])
    assert scaling._guides(higher, "latency_ms")[0].y[1] == pytest.approx(6.0), "a guide ends at the highest time"
