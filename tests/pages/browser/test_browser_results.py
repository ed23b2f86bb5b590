"""The result pages in a real browser: what only a browser shows, and what is taken away. The data ship in git."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.builders import add_run, latency, small_case
from tests.pages.browser.serving import drawn, saved, settled
from tests.pages.conftest import GPU, run_folder

pytestmark = pytest.mark.browser
REPORT = "gpu=RTX+4060+Laptop"


def test_the_tab_key_goes_into_the_popover_that_a_button_opened_and_escape_back(tab):
    page = drawn(tab())
    chip = page.locator(".st-key-chip_mode button").first
    chip.press("Enter")
    expect(page.get_by_test_id("stPopoverBody").get_by_role("radio")).to_have_count(3)
    chip.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name="causal, backward")).to_be_visible()
    page.keyboard.press("Escape")
    expect(chip).to_be_focused()


def test_a_filter_changes_the_heatmap_and_the_url_and_the_view_downloads_as_csv(tab, tmp_path):
    page = drawn(tab(f"speedup?{REPORT}"))
    expect(page).to_have_title("Speedup · attnbench")
    assert "26.5×" in " ".join(page.locator("td").all_text_contents())
    page.get_by_role("button", name="Download", exact=True).click()
    lines = saved(page, "Download speedups", tmp_path).read_text().splitlines()
    page.keyboard.press("Escape")
    assert lines[0].startswith("gpu,workload,mask,mode,timing,shape,baseline,dtype,seqlen,head_dim,implementation")
    assert len(lines) == 57
    page.locator(".st-key-chip_mode button").first.click()
    caption = page.get_by_test_id("stRadioCaption").get_by_text("backward", exact=True)
    caption.click(force=True)  # the option lies over it
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("mode=bwd"))
    expect(page.get_by_text("· backward ·")).to_be_visible()
    expect(page.get_by_text("11.8×").first).to_be_visible()
    page.locator(".st-key-chips").get_by_role("button", name=re.compile("all dtypes")).click()
    page.get_by_test_id("stPopoverBody").get_by_text("float32", exact=True).click()
    page.keyboard.press("Escape")
    settled(page)
    expect(page.get_by_role("button", name=re.compile("fp32"))).to_be_visible()
    expect(page).to_have_url(re.compile("dtype=float32"))
    expect(page.get_by_role("table")).to_have_count(1)
    entries = page.evaluate("history.length")
    page.get_by_role("link", name="Memory").click()
    expect(page).to_have_url(re.compile("memory.*dtype=float32"))
    assert page.evaluate("history.length") <= entries + 2, "a page, and its filters"


def test_a_cell_is_chosen_by_click_arrow_keys_or_name_takes_the_focus_and_gives_it_back(tab, tmp_path):
    page = drawn(tab(f"speedup?{REPORT}&dtype=float32"))
    cell = page.get_by_role("button", name=re.compile("seqlen 8192, head_dim 128;"))
    cell.click()
    heading = page.get_by_role("heading", name="float32, seqlen 8192, head_dim 128")
    expect(heading).to_be_focused()
    expect(heading).to_be_in_viewport()
    expect(page).to_have_url(re.compile("cell=float32"))
    expect(page.get_by_text("Run published-fa2_rtx4060")).to_be_visible()
    page.keyboard.press("Escape")
    expect(heading).to_have_count(0)
    expect(cell).to_be_focused()
    settled(page)
    page.get_by_role("table").get_by_role("button").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowDown"):  # the second ArrowUp leads nowhere
        page.keyboard.press(key)
    here = page.get_by_role("button", name=re.compile("seqlen 256, head_dim 32;"))
    expect(here).to_be_focused()
    expect(page.get_by_text("seqlen 256, head_dim 32", exact=False).last).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="float32, seqlen 256, head_dim 32")).to_be_focused()
    expect(here).to_have_attribute("aria-pressed", "true")
    settled(page)
    page.get_by_role("combobox", name="Shape in detail", exact=False).last.focus()
    page.keyboard.type("seqlen 1024, head_dim 32")
    page.keyboard.press("Enter")
    heading = "float32, seqlen 1024, head_dim 32"
    expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page).to_have_url(re.compile("cell=float32"))
    again = tab(page.url.split("/")[-1])
    expect(again.get_by_role("heading", name=heading)).to_be_focused()
    assert saved(page, "Save as PNG", tmp_path).read_bytes().startswith(b"\x89PNG")


def test_words_and_numbers_stay_within_their_cell_on_a_phone_and_in_a_map_of_many_columns(tab, server):
    cases = [small_case(head_dim=head_dim) for head_dim in range(16, 257, 16)]
    rows = [latency(*number, case) for case in cases for number in (("torch_naive", 12.3), ("triton_fa2", 1.0))]
    add_run(server.home, "wide", *rows, created="2026-01-01T00:00:00", gpu_name="Wide GPU")
    too_wide = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).length"
    page = drawn(tab("speedup?gpu=Wide+GPU"))
    for size in ({"width": 1440, "height": 900}, {"width": 390, "height": 844}):
        page.set_viewport_size(size)
        page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
        cells = page.locator("table .cell").filter(has_text="12.3×")
        expect(cells).to_have_count(16)
        assert cells.evaluate_all(too_wide) == 0
    page.goto(f"{server.url}/speedup?shape=all")
    words = drawn(page).locator("table .cell.words")
    expect(words.filter(has_text="not measured").first).to_be_visible()
    assert words.evaluate_all(too_wide) == 0


def test_one_press_of_back_is_one_page_and_an_address_that_is_no_page_says_so(tab, server):
    page = drawn(tab("overview?gpu=NVIDIA+H200"))
    page.get_by_role("link", name="Models").first.click()
    expect(page).to_have_url(re.compile("/models[?].*model="))
    models = drawn(page).url
    page.keyboard.press("Shift")
    late = ("/models", "/models?gpu=next", "/decode?gpu=next")  # what a busy browser writes when a page is left
    page.evaluate("urls => urls.forEach(url => history.pushState({}, '', url))", late)
    page.go_back()
    expect(page).to_have_url(models)
    page.evaluate("history.replaceState({}, '', '/models?gpu=next')")  # from the run of the page that was left
    drawn(page)
    expect(page).to_have_url(models)
    page.go_back()
    expect(page).to_have_url(re.compile("/(overview)?[?].*gpu="))
    page.goto(f"{server.url}/ui")
    expect(page.get_by_text("Page not found")).to_be_visible()


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


def test_the_rule_that_is_taken_away_says_what_the_page_says(tab, server, tmp_path):
    own = run_folder(server.home)
    address = f"overview?gpu={GPU.replace(' ', '+')}&overview_view=My+shape&shape_seqlen=300&shape_heads=2"
    page = drawn(tab(address))  # Start by its name
    expect(page.get_by_role("heading", name="Use triton_fa2")).to_be_visible()
    expect(page.get_by_text("Page not found")).to_have_count(0)
    rule: dict = {}
    exec(saved(page, "Rule as Python", tmp_path).read_text(), rule)
    assert rule["implementation"]("float16", 300, 64, num_heads=2) == "triton_fa2"
    points = json.loads(saved(page, "Rule as JSON", tmp_path).read_text())["points"]
    assert {point["run"] for point in points} == {own.run_id}
