"""What axe-core finds against each page, in light and in dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.pages.browser.serving import PAGES, drawn

pytestmark = pytest.mark.browser
_AT_REST = "Promise.all(document.getAnimations().map(running => running.finished.catch(() => null)))"


def _findings(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{rule['impact']} {rule['id']}: {node['html'][:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_serious_in_light_or_dark(tab, path):
    page = drawn(tab(path))
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(_AT_REST)
        found += [f"{scheme}: {text}" for text in _findings(page)]
    assert not found, "\n".join(found)
