"""Compare, Findings and Accuracy in a real browser, on what ships in git."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.pages.browser.serving import drawn, settled

pytestmark = pytest.mark.browser


def _pick(page: Page, name: str) -> None:
    """Press one of a row of pills."""
    page.get_by_test_id("stButtonGroup").get_by_text(name, exact=True).first.click()


def test_two_implementations_are_compared_from_a_link_and_verdicts_filter_the_cells(tab):
    link = "compare?of=Two+implementations&of_run=h200-fa_paper&against=torch_naive&with=torch_sdpa_math"
    page = drawn(tab(link))
    command = "python -m results compare h200-fa_paper/torch_naive h200-fa_paper/torch_sdpa_math"
    expect(page.get_by_test_id("stCode")).to_contain_text(command)
    expect(page.get_by_text(re.compile(r"\d+ slower.*of \d+ cells"))).to_be_visible()
    expect(page.locator(".scatterlayer .trace").first).to_be_attached()
    _pick(page, "SLOWER")
    expect(page).to_have_url(re.compile("verdict=SLOWER"))


def test_gpus_stand_side_by_side(tab):
    page = drawn(tab("compare?of=GPUs"))
    expect(page.get_by_text("as fast as RTX 4060 Laptop").first).to_be_visible()
    _pick(page, "TFLOP/s")
    expect(page).to_have_url(re.compile("quantity=TFLOP"))
    expect(page.get_by_text("TFLOP/s by seqlen, a line a GPU").first).to_be_visible()


def test_a_finding_shows_its_rows_when_it_is_selected(tab):
    page = tab("findings?weight=impossible&place=fa2_rtx4060")
    table = page.get_by_test_id("stDataFrame").first
    expect(table).to_be_visible()
    settled(page)
    box = table.bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + 75)
    expect(page.get_by_role("heading", name="The rows of that finding")).to_be_visible()


def test_accuracy_follows_the_tensor_and_the_filters(tab):
    page = drawn(tab("accuracy?gpu=NVIDIA+H200&dtype=float32"))
    expect(page.get_by_text("relative RMS error of out").first).to_be_visible()
    _pick(page, "dv")
    expect(page.get_by_text("relative RMS error of dv").first).to_be_visible()
    expect(page).to_have_url(re.compile("tensor=dv"))
    expect(page.get_by_text("triton_fa2_tf32 is").first).to_be_visible()
