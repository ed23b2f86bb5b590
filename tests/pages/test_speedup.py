import json

import pytest

from tests.pages.conftest import GPU, run_folder, shown


@pytest.fixture
def page(app):
    return app.switch_page("pages/speedup.py").run()


def _texts(page):
    spec = json.loads(page.get("plotly_chart")[0].proto.spec)
    return [
        text for trace in spec["data"] if trace["type"] == "heatmap" for line in trace["text"] for text in line if text
    ]


def test_every_cell_has_a_number_or_a_reason(page):
    assert "geometric mean of 2 of 3 cases, 2.00× to 8.00×" in shown(page)
    assert _texts(page) == ["2.00×", "8.00×", "baseline<br>OOM"]


def test_a_failed_implementation_says_how_it_failed(page):
    page.get_by_key("show").set_value("torch_sdpa_flash").run()
    assert _texts(page) == ["1.99×", "2.00×", "shared<br>memory"]


def test_axes_are_categories_in_the_order_of_their_sizes(page):
    spec = json.loads(page.get("plotly_chart")[0].proto.spec)
    assert (spec["layout"]["xaxis"]["type"], spec["layout"]["yaxis"]["type"]) == ("category", "category")
    assert spec["data"][0]["y"] == ["128", "256", "512"]


def test_a_speedup_never_mixes_two_runs(page, home):
    run_folder(home, "run-b", created="2026-02-01T00:00:00", scale=3.0)
    page.run()
    assert "geometric mean of 2 of 3 cases, 2.00× to 8.00×" in shown(page)
    page.multiselect(key="run").set_value(["run-a"]).run()
    assert "2.00× to 8.00×" in shown(page)


def test_the_slice_stays_when_the_page_changes(page):
    page.selectbox(key="mode").select("bwd").run()
    page.switch_page("pages/overview.py").run()
    assert page.selectbox(key="mode").value == "bwd"
    assert f"{GPU} · attention · causal mask · backward" in shown(page)
