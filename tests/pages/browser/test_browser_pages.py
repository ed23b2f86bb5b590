"""Every address: its view, what axe-core finds in light and dark, its width on a phone; then what only some offer."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from pages.ui import findings
from pages.ui.shell.sections import HELP, SECTIONS
from results.files import library
from tests.pages.browser.serving import PAGES, Server, drawn, saved, settled, visit
from tests.pages.conftest import looking_at
from tests.pages.test_sustained import trace

pytestmark = pytest.mark.browser
TITLES = {entry.file: entry.title for section in SECTIONS for entry in section.pages} | {HELP.file: HELP.title}
_AT_REST = "Promise.all(document.getAnimations().map(running => running.finished.catch(() => null)))"
_ASKED = {  # what passes is not listed; rules other than that of contrast do not look at colours
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast"]},
}
_WIDE, _PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def shared_tab(chrome: Browser, server: Server) -> Iterator[Page]:
    """One tab for all pages, which loads what they have in common once."""
    page = visit(chrome, f"{server.url}/units")
    yield page
    page.context.close()


@pytest.fixture(scope="module")
def nearly_checked(made_home: Path) -> None:
    """Have the findings of all runs but one kept, so that the page Findings draws what it has, checks one and ends."""
    with looking_at(made_home):
        findings.of_runs([folder.run_id for folder in library.folders() if folder.run_id != "h200-prefill-1k"])


def _findings(page: Page, options: dict) -> list[str]:
    found = page.evaluate("options => axe.run(options)", options)["violations"]
    return [
        f"{rule['impact']} {rule['id']}: {node['html'][:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical") or rule["id"] == "heading-order"
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_opens_can_be_read_by_all_and_fits_a_phone(shared_tab: Page, server: Server, path: str, request):
    page, found = shared_tab, []
    if path == "findings":
        request.getfixturevalue("nearly_checked")
    page.set_viewport_size(_WIDE)
    page.emulate_media(color_scheme="light")
    page.goto(f"{server.url}/{path}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(TITLES[path or "overview"])
    drawn(page)
    expect(page.get_by_test_id("stProgress")).to_have_count(0)  # Findings is drawn again until all is checked
    drawn(page)
    assert page.get_by_test_id("stException").count() == 0
    page.evaluate(Axe().axe_script)
    for scheme, options in _ASKED.items():
        page.emulate_media(color_scheme=scheme)
        page.evaluate(_AT_REST)
        found += [f"{scheme}: {text}" for text in _findings(page, options)]
    assert not found, "\n".join(found)
    page.set_viewport_size(_PHONE)
    page.wait_for_function("document.documentElement.scrollWidth <= 390")


def test_a_rule_opens_into_its_findings_when_its_line_is_selected(tab):
    page = tab("findings?weight=impossible&place=fa2_rtx4060")
    table = page.get_by_test_id("stDataFrame").first
    expect(table).to_be_visible()
    expect(page.get_by_test_id("stProgress")).to_have_count(0)  # the page is drawn again until all is checked
    settled(page)
    box = table.bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + 52)
    expect(page.get_by_text("fa2_rtx4060: 2 findings")).to_be_visible()


def test_a_trace_is_drawn_and_taken_away(tab, server, tmp_path):
    trace(server.home, "hot")
    trace(server.home, "hotter", name="gluon_hopper")
    page = drawn(tab("sustained"))
    expect(page.get_by_text("sustains 75 % of its first-second throughput: 300 of 400 TFLOP/s").first).to_be_visible()
    expect(page.locator(".scatterlayer .trace")).to_have_count(4)
    page.set_viewport_size({"width": 1440, "height": 2400})  # the options need room below the choice
    page.get_by_role("combobox", name=re.compile("Traces")).click()
    page.get_by_role("option", name=re.compile("gluon_hopper")).click()
    page.keyboard.press("Escape")
    settled(page)
    expect(page.locator(".scatterlayer .trace")).to_have_count(8)
    expect(page).to_have_url(re.compile("traces=.*traces="))
    assert len(saved(page, "Download traces", tmp_path).read_text().splitlines()) == 1 + 2 * 12
