"""One Chromium for all browser tests; a server and a home for each test module that wants its own.

Without a Chromium the browser tests are skipped with a reason. `$ATTNBENCH_REQUIRE_BROWSER` makes that a failure.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.pages.browser.serving import WINDOW, Server, chromium, find_chromium, opened_in

NO_BROWSER = (
    "No Chromium on this machine; install one with `playwright install chromium` or the system's package `chromium`, "
    "or name its path in $CHROMIUM."
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    browser = [item for item in items if item.get_closest_marker("browser")]
    if not browser or os.environ.get("ATTNBENCH_REQUIRE_BROWSER") or find_chromium():
        return
    for item in browser:
        item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    assert find_chromium(), NO_BROWSER
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shipped: Path, kept_findings: Path) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    shutil.copyfile(shipped, home / shipped.name)
    (home / "findings").symlink_to(kept_findings)
    running = Server(home).start()
    yield running
    running.stop()
    assert "Traceback" not in running.log, running.log


@pytest.fixture(scope="module")
def window(chrome: Browser) -> Iterator[BrowserContext]:
    """A window whose tabs load the app's scripts once."""
    opened = chrome.new_context(**WINDOW)
    yield opened
    opened.close()


@pytest.fixture
def tab(window: BrowserContext, server: Server) -> Iterator[Callable[..., Page]]:
    """Opens a path of the app in a fresh tab; none may show an exception."""
    pages: list[Page] = []

    def open_tab(path: str = "") -> Page:
        pages.append(opened_in(window, f"{server.url}/{path}"))
        return pages[-1]

    yield open_tab
    for page in pages:
        assert page.get_by_test_id("stException").count() == 0, page.get_by_test_id("stException").all_inner_texts()
        page.close()
