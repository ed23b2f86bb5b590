"""What is taken away in a real browser: reports, rules, runs; and what comes back."""

import json
import re

import pytest
from playwright.sync_api import expect

from results.files.journal import RunFolder
from tests.pages.browser.serving import drawn, saved
from tests.pages.conftest import GPU, run_folder

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def own(server) -> RunFolder:
    """A run of one's own in the home of the server."""
    return run_folder(server.home)


def test_a_report_is_read_beside_a_run_and_taken_away_as_one_file(tab, chrome, tmp_path):
    page = drawn(tab("reports?report=fa2_rtx4060"))
    expect(page.get_by_text("62 of 62")).to_be_visible()
    page.get_by_test_id("stButtonGroup").get_by_text("Chart", exact=True).click()
    expect(page).to_have_url(re.compile("report_view=Chart"))
    drawn(page)
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    path = saved(page, "HTML", tmp_path)
    offline = chrome.new_context(offline=True).new_page()
    asked: list[str] = []
    offline.on("request", lambda request: asked.append(request.url))
    offline.goto(path.as_uri())
    expect(offline.get_by_role("img", name=re.compile("Speedup of the own run")).first).to_be_attached()
    expect(offline.get_by_role("cell", name=re.compile(r"^0\.0534 . 0\.\d{4}$"))).to_be_visible()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    offline.context.close()


def test_the_rule_that_is_taken_away_says_what_the_page_says(tab, own, tmp_path):
    address = f"overview?gpu={GPU.replace(' ', '+')}&overview_view=My+shape&shape_seqlen=300&shape_heads=2"
    page = drawn(tab(address))  # Start by its name
    expect(page.get_by_role("heading", name="Use triton_fa2")).to_be_visible()
    expect(page.get_by_text("Page not found")).to_have_count(0)
    rule: dict = {}
    exec(saved(page, "Rule as Python", tmp_path).read_text(), rule)
    assert rule["implementation"]("float16", 300, 64, num_heads=2) == "triton_fa2"
    points = json.loads(saved(page, "Rule as JSON", tmp_path).read_text())["points"]
    assert {point["run"] for point in points} == {own.run_id}
