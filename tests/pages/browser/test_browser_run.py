"""Running sweeps from the page in a real browser, on the CPU: to the end, cancelled, seen from elsewhere."""

import fcntl
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from results.files import journal
from runner import launch
from tests.pages.browser.serving import ROOT, Server, settled, visit
from tests.runner.conftest import HERE
from tests.runner.fast_worker import SETTINGS_VARIABLE

pytestmark = pytest.mark.browser
SWEEP_MS = 240_000  # the longest a small CPU sweep may take on a busy machine
SMALL = (
    "run_sweep?sweep=quick&edit_seqlen_quick=128,256,512&edit_dtype_quick=float32"
    "&edit_implementations_quick=torch_naive,torch_sdpa_math"
)
LONG = "run_sweep?sweep=quick&edit_seqlen_quick=512,1024,2048,4096&edit_implementations_quick=torch_naive"


@pytest.fixture
def home(tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of its own; whatever it left running is cancelled and waited for."""
    shutil.copyfile(shipped, tmp_path / shipped.name)
    server = Server(tmp_path).start()
    monkeypatch.setenv("ATTNBENCH_HOME", str(server.home))
    yield server
    server.stop()
    for folder in journal.run_folders(server.home):
        if folder.is_alive():
            folder.request_cancel()
            with open(folder.path / "run.lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # once its holder is gone; the deadline is the test's own
    assert "Traceback" not in server.log, server.log


@pytest.fixture
def idle_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that takes its time and no core: how a sweep is found and cancelled does not depend on who measures."""
    monkeypatch.setenv("ATTNBENCH_WORKER", f"{sys.executable} {HERE / 'fast_worker.py'}")
    monkeypatch.setenv(SETTINGS_VARIABLE, json.dumps({"delay_s": 5.0}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def _start(page: Page) -> None:
    page.get_by_role("button", name="Run sweep").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible(timeout=SWEEP_MS)


def test_a_sweep_runs_to_its_end_and_its_results_arrive(chrome: Browser, home: Server):
    page = visit(chrome, f"{home.url}/{SMALL}")
    _start(page)
    expect(page.get_by_text(re.compile(r"\d+ of \d+ combinations · "))).to_be_visible()
    expect(page.get_by_text("latencies so far")).to_be_visible(timeout=SWEEP_MS)
    expect(page.get_by_text("No sweep is running on this machine.")).to_be_visible(timeout=SWEEP_MS)
    (status,) = launch.runs()
    assert (status.state, status.done) == ("finished", status.total)
    expect(page.get_by_text("The sweep has finished after")).to_be_visible()
    page.get_by_role("link", name="See results").click()
    settled(page)
    expect(page.get_by_text(re.compile("torch_naive on average over"))).to_be_visible()
    assert page.get_by_test_id("stException").count() == 0


def test_a_running_sweep_is_found_again_and_can_be_cancelled(chrome: Browser, idle_worker: None, home: Server):
    first = visit(chrome, f"{home.url}/{LONG}")
    _start(first)
    second = visit(chrome, f"{home.url}/run_sweep")
    (status,) = launch.runs()
    expect(second.get_by_text(status.run_id).first).to_be_visible()

    home.stop()
    assert launch.status(status.run_id).state == "running"
    home.start()
    third = visit(chrome, f"{home.url}/run_sweep")
    expect(third.get_by_role("button", name="Cancel")).to_be_visible()

    third.get_by_role("button", name="Cancel").click()
    third.get_by_role("button", name="Yes, cancel it").click()
    expect(third.get_by_text("No sweep is running on this machine.")).to_be_visible(timeout=SWEEP_MS)
    assert launch.status(status.run_id).state == "cancelled"
    expect(third.get_by_role("button", name="Resume").first).to_be_visible()
    expect(first.get_by_text("No sweep is running on this machine.")).to_be_visible()
    for page in (first, second, third):
        assert page.get_by_test_id("stException").count() == 0
