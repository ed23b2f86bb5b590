"""What tests of several packages begin with."""

import fcntl
import gc
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores, and OpenMP's threads spin where they wait for one
    os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()  # until all tests are collected: what that makes stays, and looking through it takes seconds
os.environ["ATTNBENCH_RULES"] = os.devnull  # tests ignore the rules that are installed here
# The files that take longest, first: the test command gives each file to one worker, and none is to be left with one.
LONGEST = cases(__file__, "LONGEST")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-gpu", action="store_true", help="write what passed on this GPU to tests/gpu_record.json")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--record-gpu") and not hasattr(config, "workerinput"):
        from tests import gpu_record

        counts = {name: len(terminalreporter.getreports(name)) for name in ("passed", "skipped")}
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        failed = {report.nodeid: report for report in reports}  # each worker has the same error of collecting
        gpu_record.add(counts | {"failed": len(failed)}, list(failed.values()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    """Keep what collecting has made, which stays, out of later garbage collections.

    A worker's stores use one thread each, as workers share the cores. Servers and commands that tests start use two.
    """
    gc.freeze()
    gc.enable()
    if "PYTEST_XDIST_WORKER" in os.environ and (database := sys.modules.get("results.store.database")):
        database.THREADS = 1


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a home without runs: what ships takes five seconds to read, so all workers share one reading."""
    made = _of_all_workers(tmp_path_factory) / "shipped.duckdb"
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            from results.store.database import open_store  # tests of kernels run where no database is installed

            home = tmp_path_factory.mktemp("shipped")
            open_store(home).close()
            shutil.copyfile(home / "store.duckdb", made)
    mine = tmp_path_factory.mktemp("copied") / "store.duckdb"
    shutil.copyfile(made, mine)
    return mine


@pytest.fixture(scope="session")
def kept_findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which homes keep what checks have found in each state of a run, so that all workers check it once.

    A test that replaces a check takes a home with a folder of its own.
    """
    shared = _of_all_workers(tmp_path_factory) / "findings"
    shared.mkdir(exist_ok=True)
    return shared


def _of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this run of pytest: of all its xdist workers, each of which has a folder in it."""
    mine = tmp_path_factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine
