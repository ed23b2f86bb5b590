"""A sweep from the page in a real browser: seen from elsewhere, cancelled, resumed to its end."""

import fcntl
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from results.files import journal
from runner import launch
from tests.pages.browser.serving import ROOT, Server, opened_in, settled, visit
from tests.runner.conftest import HERE
from tests.runner.fast_worker import SETTINGS_VARIABLE

pytestmark = pytest.mark.browser
SWEEP = "run_sweep?sweep=quick&edit_seqlen_quick=512,1024&edit_implementations_quick=torch_naive"
SWEEP += "&edit_implementations_quick=torch_sdpa_math"


@pytest.fixture
def home(tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of its own, whose sweeps stick at a cell; whatever it left running is cancelled and waited for."""
    monkeypatch.setenv("ATTNBENCH_WORKER", f"{sys.executable} {HERE / 'fast_worker.py'}")
    monkeypatch.setenv(SETTINGS_VARIABLE, json.dumps({"stuck_at": ["torch_naive", "bwd", 1024]}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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


def test_a_sweep_is_found_again_cancelled_and_resumed_to_its_end(chrome: Browser, home: Server):
    """The worker computes nothing: the page depends on what it answers, and when."""
    first = visit(chrome, f"{home.url}/{SWEEP}")
    first.get_by_role("button", name="Run sweep").click()
    expect(first.get_by_role("button", name="Cancel")).to_be_visible()
    expect(first.get_by_text(re.compile(r"\d+ of \d+ combinations · "))).to_be_visible()
    expect(first.get_by_text("latencies so far")).to_be_visible()
    (status,) = launch.runs()

    home.stop()
    assert launch.status(status.run_id).state == "running"
    home.environment[SETTINGS_VARIABLE] = "{}"  # of the worker that resumes
    home.start()
    second = opened_in(first.context, f"{home.url}/run_sweep")  # has loaded the scripts
    expect(second.get_by_text(status.run_id).first).to_be_visible()
    second.get_by_role("button", name="Cancel").click()
    second.get_by_role("button", name="Yes, cancel it").click()
    expect(second.get_by_text("No sweep is running on this machine.")).to_be_visible()
    assert launch.status(status.run_id).state == "cancelled"
    expect(first.get_by_text("No sweep is running on this machine.")).to_be_visible()
    assert first.get_by_test_id("stException").count() == 0
    first.close()  # else it is redrawn with the other to the end

    second.get_by_role("button", name="Resume").first.click()
    expect(second.get_by_text("The sweep has finished after")).to_be_visible()
    (status,) = launch.runs()
    assert (status.state, status.done) == ("finished", status.total)
    results = settled(second).get_by_role("link", name="See results")
    expect(results).to_have_count(1)  # while the page is drawn again, the one before is there too
    results.click()
    settled(second)
    expect(second.get_by_role("heading", name="Every implementation")).to_be_visible()
    assert second.get_by_test_id("stException").count() == 0
