"""Compare, Findings and Accuracy in a real browser, on what ships in git."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.pages.browser.serving import drawn, settled
from tests.pages.test_sustained import trace

pytestmark = pytest.mark.browser


def _pick(page: Page, name: str) -> None:
    """Press one of a row of pills."""
    page.get_by_test_id("stButtonGroup").get_by_text(name, exact=True).first.click()


def test_two_implementations_are_compared_from_a_link_and_verdicts_filter_the_cells(tab):
    link = "compare?of=Two+implementations&of_run=h200-fa_paper-causal&against=torch_naive&with=torch_sdpa_math"
    page = drawn(tab(link))
    command = "python -m results compare h200-fa_paper-causal/torch_naive h200-fa_paper-causal/torch_sdpa_math"
    expect(page.get_by_test_id("stCode")).to_contain_text(command)
    expect(page.get_by_text(re.compile(r"\d+ slower.*of \d+ shapes"))).to_be_visible()
    expect(
        page.get_by_role("button", name=re.compile("[▲▼=]")).or_(page.get_by_text(re.compile("× [▲▼=]"))).first
    ).to_be_visible()
    _pick(page, "SLOWER")
    expect(page).to_have_url(re.compile("verdict=SLOWER"))


def test_a_trace_is_drawn_and_taken_away(tab, server, tmp_path):
    trace(server.home, "hot")
    trace(server.home, "hotter", name="gluon_hopper")
    page = drawn(tab("sustained"))
    expect(page.get_by_text("sustains 75 % of its first-second throughput: 300 of 400 TFLOP/s").first).to_be_visible()
    expect(page.locator(".scatterlayer .trace")).to_have_count(3)
    page.get_by_role("combobox", name=re.compile("Traces")).click()
    page.get_by_role("option", name=re.compile("gluon_hopper")).click()
    page.keyboard.press("Escape")
    settled(page)
    expect(page.locator(".scatterlayer .trace")).to_have_count(6)
    expect(page).to_have_url(re.compile("traces=.*traces="))
    with page.expect_download() as caught:
        page.get_by_role("button", name="Download traces").click()
    caught.value.save_as(tmp_path / "traces.csv")
    assert len((tmp_path / "traces.csv").read_text().splitlines()) == 1 + 2 * 12


def test_what_a_peak_is_made_of_opens_beside_its_formula(tab):
    page = drawn(tab("memory?gpu=NVIDIA+H200&mode=fwd_bwd"))
    tables = page.get_by_test_id("stDataFrame").count()
    page.get_by_text("What the peak is made of").click()
    expect(page.get_by_test_id("stDataFrame")).to_have_count(tables + 1)
    expect(page.get_by_text("Saved for backward is measured with forward and backward")).to_be_visible()


def test_accuracy_follows_the_tensor_and_the_filters(tab):
    page = drawn(tab("accuracy?gpu=NVIDIA+H200&dtype=float32"))
    expect(page.get_by_text("relative RMS error of out").first).to_be_visible()
    _pick(page, "dv")
    expect(page.get_by_text("relative RMS error of dv").first).to_be_visible()
    expect(page).to_have_url(re.compile("tensor=dv"))
    expect(page.get_by_text("triton_fa2_tf32 is").first).to_be_visible()
