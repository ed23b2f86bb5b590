"""The static site from disk in a real browser, without a server or a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from results.__main__ import main
from results.files import journal
from tests.pages.conftest import run_folder

pytestmark = pytest.mark.browser


@pytest.fixture
def page(chrome: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """The site of a small home; the browser is offline."""
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "none")
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path / "home"))
    run_folder(tmp_path / "home")
    assert main(["site", str(tmp_path / "out"), "--no-reports"]) == 0
    opened = chrome.new_context(offline=True, viewport={"width": 390, "height": 844}).new_page()
    opened.goto((tmp_path / "out" / "index.html").as_uri())
    yield opened
    opened.context.close()


def test_filters_toggles_and_links_work_from_disk_and_one_to_what_is_not_here_says_so(page):
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    grid = page.get_by_role("table", name="Fastest implementation by seqlen and head_dim, float16")
    expect(page.get_by_text("triton_fa2 leads: no other has times of as many shapes")).to_be_visible()
    expect(grid.get_by_role("cell").nth(1)).to_have_text("triton_fa24.00× torch_sdpa_flash")
    page.get_by_label("triton_fa2").click()
    expect(grid.get_by_role("cell").first).to_contain_text("? torch_sdpa_flash")
    page.get_by_label("Mode").select_option("bwd")
    link = page.url
    page.reload()
    assert page.url == link
    expect(page.get_by_label("Mode")).to_have_value("bwd")
    expect(page.get_by_label("triton_fa2")).not_to_be_checked()
    page.go_back()
    expect(page.get_by_label("Mode")).to_have_value("fwd")
    page.get_by_role("button", name="Models").click()
    page.get_by_label("Model").select_option("llama3-8b")
    expect(page.get_by_text("train, recomputed 1 × 8k takes 60.82 GiB and fits")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.evaluate("location.hash = 'view=start&gpu=Nothing'")
    expect(page.get_by_role("status")).to_have_text("The link names what is not here: GPU Nothing.")
    assert not errors
