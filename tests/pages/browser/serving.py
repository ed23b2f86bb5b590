"""The app on a port of its own, with a home of its own, and a Chromium to look at it. Every wait has a deadline."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.cases import HANG_S

ROOT = Path(__file__).parents[3]
PAGES = (
    *("", "speedup", "memory", "scaling", "accuracy", "decode", "layers", "models", "compare", "sustained", "findings"),
    *("shapes", "reports", "run_sweep", "runs", "upload", "units", "programs"),
)
IDLE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
DEADLINE_MS = 240_000  # sweeps on the CPU and other tests may share two cores
WINDOW = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"}  # moving parts cost much to draw
expect.set_options(timeout=DEADLINE_MS)  # of every look that names none; Playwright's own is 5 s


class Server:
    """One `streamlit run app.py`, or of another script; `log` is what it printed."""

    def __init__(
        self,
        home: Path,
        *,
        address: str = "127.0.0.1",
        environment: dict[str, str] | None = None,
        script: str | Path = "app.py",
    ) -> None:
        self.home, self.address, self.port, self.script = Path(home), address, free_port(), str(script)
        self.environment = {**os.environ, "ATTNBENCH_HOME": str(home), **(environment or {})}
        self.log_path = self.home / f"server-{self.port}.log"
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def start(self) -> "Server":
        """Start and wait until it answers. Raises RuntimeError with the log if it ends or hangs."""
        self.home.mkdir(parents=True, exist_ok=True)
        flags = f"--server.port={self.port} --server.address={self.address} --server.headless=true"
        flags += " --server.fileWatcherType=none"
        command = [sys.executable, "-m", "streamlit", "run", self.script, *flags.split()]
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=1):
                    return self
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"The app did not start:\n{self.log}")

    def stop(self) -> None:
        """End it and wait for its end."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=15)


def find_chromium() -> str | None:
    """Return the path of a Chromium: $CHROMIUM, the system's, or the one `playwright install chromium` brings.

    The shell without windows first: the others draw a window around each page, which is a third of their work.
    """
    named = [os.environ.get("CHROMIUM", ""), "chromium-headless-shell", "chromium", "chromium-browser"]
    named += ["google-chrome", "google-chrome-stable"]
    if found := next(filter(None, map(shutil.which, filter(None, named))), None):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Launch this machine's Chromium without a window."""
    path = find_chromium()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def settled(page: Page) -> Page:
    """The page once its script has run to the end."""
    expect(page.locator(IDLE)).to_be_visible()
    return page


def drawn(page: Page) -> Page:
    """The settled page once nothing is still loading and every chart is there."""
    expect(page.locator("h1").first).to_be_visible()  # between two runs a page is settled and empty
    settled(page)
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    expect(page.locator('[data-stale="true"]')).to_have_count(0)  # drawn pale until drawn again
    for component in page.locator(".stBidiComponent").all():
        expect(component.locator("table, h3").first).to_be_attached()
    for chart in page.get_by_test_id("stPlotlyChart").all():
        expect(chart.locator(".main-svg").first).to_be_attached()
    page.evaluate("document.fonts.ready")
    return page


def saved(page: Page, button: str, folder: Path) -> Path:
    """Press a button and save what it downloads in a folder, under its own name."""
    with page.expect_download() as caught:
        page.get_by_role("button", name=button, exact=True).click()
    path = folder / caught.value.suggested_filename
    caught.value.save_as(path)
    return path


def visit(browser: Browser, url: str, **context: object) -> Page:
    """A fresh window with the page at that address, settled."""
    return opened_in(browser.new_context(**{**WINDOW, **context}), url)


def opened_in(window: BrowserContext, url: str) -> Page:
    """A fresh tab of a window with the page at that address, settled."""
    page = window.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.goto(url)
    return settled(page)
