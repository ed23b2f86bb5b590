"""The page Accuracy: errors by implementation, tensor and inputs."""

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from pages.ui import accuracy
from pages.ui.draw import charts
from results.files.journal import RunFolder
from results.records import Measurement, Run, attention_case
from tests.cases import cases
from tests.pages.conftest import GPU, opened, shown

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
RUN = Run("exact", "local", created="2026-03-01T00:00:00", gpu_name=GPU)


def rows(name: str, error: float, ms: float | None, **fields) -> list[Measurement]:
    """Error of out (ten times as large at most), of dq, and the times of forward and backward."""
    case = replace(CASE, **fields)
    wanted = [("error_out", "fwd", None, error), ("max_error_out", "fwd", None, 10 * error)]
    wanted.append(("error_dq", "bwd", None, 2 * error))
    wanted += [("latency_ms", mode, "kernel", ms) for mode in ("fwd", "bwd") if ms]
    return [
        Measurement("exact", case, name, metric, "ok", mode=mode, timing=timing, value=value)
        for metric, mode, timing, value in wanted
    ]


NORMAL = [*rows("torch_naive", 4e-3, 8.0), *rows("triton_fa2", 2e-3, 2.0), *rows("wild", 4e-2, 1.0)]


@pytest.fixture
def page(unpublished, app):
    RunFolder.create(unpublished, RUN, NORMAL)
    return app.switch_page("pages/accuracy.py").run()


def marks(page, chart=0):
    data = json.loads(page.get("plotly_chart")[chart].proto.spec)["data"]
    return {trace["name"]: trace for trace in data if trace.get("name")}


def test_the_frontier_is_drawn_filled_and_the_beaten_open_for_each_tensor_and_kind_of_error(page, home):
    found = marks(page)
    assert found["triton_fa2"]["marker"]["symbol"] == "diamond" or "open" not in found["triton_fa2"]["marker"]["symbol"]
    assert "open" in found["torch_naive"]["marker"]["symbol"]
    assert "wild is the fastest: 8.00× torch_naive at error 0.04 (10.0× that of torch_naive)" in shown(page)
    for chart in page.get("plotly_chart"):
        assert json.loads(chart.proto.spec)["layout"]["yaxis"]["type"] == "log"
    page.get_by_key("tensor").set_value("dq").run()
    assert opened("accuracy", tensor="dv").get_by_key("tensor").value == "dv"
    title = json.loads(page.get("plotly_chart")[0].proto.spec)["layout"]["title"]["text"]
    assert title.startswith("<b>Relative RMS error of dq against")
    assert page.dataframe[0].value.set_index("implementation").loc["triton_fa2", "error"] == pytest.approx(4e-3)
    page.get_by_key("tensor").set_value("out").run()
    page.get_by_key("error").set_value("max_error").run()
    assert page.dataframe[0].value.set_index("implementation").loc["triton_fa2", "error"] == pytest.approx(2e-2)
    page.get_by_key("tensor").set_value("dv").run()
    assert "No error against float64 in this slice" in shown(page)
    page.get_by_key("tensor").set_value("out").run()
    assert "frontier" in page.dataframe[0].value
    page.radio(key="baseline").set_value("torch_sdpa_flash").run()
    assert "No times for these errors" in shown(page)
    assert "frontier" not in page.dataframe[0].value
    assert len(page.get("plotly_chart")) == 1


def test_a_filter_that_the_errors_do_not_depend_on_is_not_drawn_and_keeps_its_value(page):
    page.switch_page("pages/speedup.py").run().radio(key="mode").set_value("bwd").run()
    page.switch_page("pages/accuracy.py").run()
    assert {"mask", "baseline"} <= {radio.key for radio in page.radio}
    assert "mode" not in {radio.key for radio in page.radio}
    assert page.switch_page("pages/speedup.py").run().radio(key="mode").value == "bwd"
    assert f"{GPU} · attention · causal mask · backward" in shown(page)


def test_other_inputs_stand_beside_normal_ones_once_a_run_has_them(page, home):
    assert "No errors on other inputs" in shown(page)
    odd = [*rows("torch_naive", 8e-3, None, inputs="outliers"), *rows("triton_fa2", 4e-2, None, inputs="outliers")]
    other = replace(RUN, run_id="odd")
    RunFolder.create(home, other, [replace(row, run_id="odd") for row in odd])
    page.run()
    table = next(table.value for table in page.dataframe if "inputs" in table.value and "worst" in table.value)
    found = table.set_index(["implementation", "inputs"])["over_naive"]
    assert found["triton_fa2", "outliers"] == pytest.approx(5.0)
    assert found["triton_fa2", "normal"] == pytest.approx(0.5)
    assert "The sweep `accuracy` takes them" not in shown(page)
    chart = json.loads(page.get("plotly_chart")[2].proto.spec)
    assert chart["layout"]["xaxis"]["ticktext"] == ["normal", "outliers"]
    places = {trace["name"]: trace["x"] for trace in chart["data"]}
    assert [round(place) for place in places["triton_fa2"]] == [0, 1]
    assert len({places[name][0] for name in places}) == len(places), "side by side, not on top of each other"


def test_what_fails_the_check_on_other_inputs_and_what_has_no_times_is_said(page, home):
    odd = rows("triton_fa2", 4e-2, None, inputs="large")
    odd = [replace(row, flags=("incorrect",), note="out is wrong: 4e-2.") for row in odd]
    odd += rows("torch_naive", 8e-3, None, inputs="large")
    RunFolder.create(home, replace(RUN, run_id="odd"), [replace(row, run_id="odd") for row in odd])
    page.run()
    assert "**triton_fa2** fails the check in float16 on large inputs at seqlen 128 × head_dim 64: out is" in shown(
        page
    )
    other = rows("torch_naive", 8e-3, None, dtype="bfloat16")
    RunFolder.create(home, replace(RUN, run_id="untimed"), [replace(row, run_id="untimed") for row in other])
    before = len(page.get("plotly_chart"))
    page.run()
    assert "No time, so not drawn: bfloat16." in shown(page)
    assert len(page.get("plotly_chart")) == before + 1, "by seqlen only"


def test_other_inputs_are_found_where_the_slice_has_none(page, home):
    odd = [
        *rows("torch_naive", 8e-3, None, inputs="large", causal=False),
        *rows("torch_naive", 4e-3, None, causal=False),
    ]
    RunFolder.create(home, replace(RUN, run_id="odd"), [replace(row, run_id="odd") for row in odd])
    page.run()
    assert "all masks, batches and heads, because the filters select no such errors" in shown(page)
    table = next(table.value for table in page.dataframe if "inputs" in table.value and "worst" in table.value)
    assert table.set_index("inputs")["error"].to_dict() == pytest.approx({"normal": 4e-3, "large": 8e-3}, rel=0.01)


def test_errors_that_hardly_differ_still_have_an_axis_with_numbers():
    names = ["a", "torch_naive"]
    table = pd.DataFrame({"implementation": names, "seqlen": [128, 128], "error": [3.09e-7, 3.19e-7]})
    chart = accuracy.by_seqlen_chart(table, dict.fromkeys(names, "#000000"), (3.09e-7, 3.19e-7))
    assert [line.line for line in chart.series if line.name in names] == ["solid", "dash"]
    axis = charts.figure(chart).layout.yaxis
    assert 10 ** axis.range[0] < 3.09e-7 < 3.19e-7 < 10 ** axis.range[1]
    assert sum(axis.range[0] <= math.log10(mark) <= axis.range[1] for mark in axis.tickvals) >= 2


def test_a_slice_without_errors_says_what_makes_some(unpublished, app):
    page = app.switch_page("pages/accuracy.py").run()
    assert "No error against float64" in shown(page)
    assert any("runner run accuracy" in code.value for code in page.code)


def test_certificates_are_a_table_and_a_failure_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"out": {"no leak": 1e-3, "repeat": 0.0}, "gradients": {"no leak": 0.0, "repeat": 0.0}}
    entry = {"environment": cases(__file__, "environment"), "implementations": {"odd": found, "absent": "needs a GPU"}}
    monkeypatch.setattr(accuracy, "record", lambda name: {"A device": entry})
    drawn, captions = [], []
    monkeypatch.setattr(accuracy.st, "caption", lambda text, **_: captions.append(text))
    monkeypatch.setattr(accuracy.tables, "grid", lambda table, *_: drawn.append(table))
    accuracy.certificates()
    odd, absent = drawn[0].to_dict("records")
    assert odd["no leak"] == "1.0e-03 · 0 fails: python -m runner.validate.certificates --implementations odd"
    assert captions[0].startswith("A device, torch 2.13, x 4.0, 2026-11-28: largest deviation")
    assert odd["repeat"] == "0 · 0" and absent["reason"] == "needs a GPU"


def test_the_axis_of_errors_begins_at_the_least_above_zero():
    assert accuracy._limits(pd.Series([0.0, 2e-7, 3e-6])) == [2e-7, 3e-6]
