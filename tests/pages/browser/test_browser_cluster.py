"""A sweep over two made-up nodes with two made-up GPUs each, from the page: started, followed, cancelled."""

import json
import re
import shutil
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from runner import launch
from tests.pages.browser.serving import Server, drawn, visit
from tests.runner.conftest import HERE
from tests.runner.fast_worker import SETTINGS_VARIABLE

pytestmark = [pytest.mark.browser, pytest.mark.ray]
NODE = {"num_cpus": 1, "num_gpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
SWEEP = "run_sweep?device=ray&sweep=fa2_speedup&cluster_cpu=true&edit_implementations_fa2_speedup=torch_naive"


@pytest.fixture
def cluster_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(SETTINGS_VARIABLE, json.dumps({"delay_s": 1.0}))
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.add_node(**NODE)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture
def home(tmp_path, shipped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("ATTNBENCH_WORKER", f"{sys.executable} {HERE / 'fast_worker.py'}")
    shutil.copyfile(shipped, tmp_path / shipped.name)
    server = Server(tmp_path).start()
    monkeypatch.setenv("ATTNBENCH_HOME", str(server.home))
    yield server
    server.stop()
    assert "Traceback" not in server.log, server.log


def test_a_cluster_is_looked_at_and_a_sweep_on_it_followed_and_cancelled(
    chrome: Browser, home: Server, cluster_address: str
) -> None:
    page = visit(chrome, f"{home.url}/{SWEEP}&cluster_address={cluster_address}")
    page.get_by_role("button", name="Look at the cluster").click()
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
    assert launch.cluster(cluster_address)["free"] == 4
    page.get_by_role("button", name="Run sweep").click()
    expect(page.get_by_text(re.compile(r"Now, by card"))).to_be_visible()
    expect(page.get_by_text(re.compile(r"^[1-9]\d* of 168 combinations"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(page.get_by_text("No sweep is running on this machine.")).to_be_visible()
    (status,) = launch.runs()
    assert status.state == "cancelled"
    assert 0 < status.done < status.total == 168
    page.goto(f"{home.url}/runs?run_id={status.run_id}")
    drawn(page)
    expect(page.get_by_text("Each card measured whole shapes of the sweep.")).to_be_visible()
    tables = page.get_by_test_id("stDataFrame")
    before = tables.count()
    page.get_by_role("button", name="Look at the cluster").click()
    expect(tables).to_have_count(before + 1)
    assert page.get_by_test_id("stException").count() == 0
