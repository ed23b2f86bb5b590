"""A new level needs two modules, one word in a list and a sweep: a made-up level runs from plan to map."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from results.paths import REPOSITORY

TOY = Path(__file__).parent / "toy_level"
PLACES = {"on_paper": "results/levels", "measured": "runner/levels", "sweep": "runner/sweeps"}
LIST = 'LEVELS = ("op", "decode", "layer", "model")'
LEFT_OUT = shutil.ignore_patterns("published", "runs", "logs", "trash", "__pycache__", "*.duckdb*", "*.md")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run `python -m` in a copy of the source tree that has the new level."""
    tree = tmp_path_factory.mktemp("checkout")
    for package in ("kernels", "results", "runner"):
        shutil.copytree(REPOSITORY / package, tree / package, ignore=LEFT_OUT)
    for name, place in PLACES.items():
        shutil.copy(TOY / f"{name}.py", tree / place / "softmax.py")
    records = tree / "results" / "records.py"
    assert records.read_text().count(LIST) == 1
    records.write_text(records.read_text().replace(LIST, LIST.replace(")", ', "softmax")')))
    environment = {**os.environ, "ATTNBENCH_HOME": str(tree / "home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def run_id(command: Callable[..., str]) -> str:
    return command("runner", "run", "softmax", "--device", "cpu", "--quick").strip()


def test_its_implementations_are_listed_and_its_cells_planned(command: Callable[..., str]) -> None:
    listed = json.loads(command("runner", "list", "--json"))["implementations"]
    assert [each["name"] for each in listed if each["level"] == "softmax"] == ["torch_naive", "by_exp", "unscaled"]
    planned = json.loads(command("runner", "plan", "softmax", "--device", "cpu", "--json"))
    assert (planned["cell_count"], planned["skipped_count"]) == (6, 0)
    assert all(0 < cell["seconds"] < 1 for cell in planned["cells"])


def test_its_run_is_checked_timed_and_exported(command: Callable[..., str], run_id: str) -> None:
    rows = list(csv.DictReader(io.StringIO(command("results", "export", "--run", run_id))))
    assert {row["level"] for row in rows} == {"softmax"}
    latencies = [row for row in rows if row["metric"] == "latency_ms" and row["timing"] == "eager"]
    assert {(row["implementation"], row["status"]) for row in latencies} == {
        ("torch_naive", "ok"),
        ("by_exp", "ok"),
        ("unscaled", "incorrect"),
    }
    errors = [row for row in rows if row["metric"] == "error_out"]
    assert len(errors) == 6 and all(float(row["value"]) < 1e-6 for row in errors if row["implementation"] == "by_exp")


def test_its_cells_are_on_a_map_by_its_own_axes(command: Callable[..., str], run_id: str) -> None:
    drawn = command("results", "render", "--workload", "softmax softmax", "--run", run_id)
    assert "| float32, rows | columns 8 |" in drawn
    assert drawn.count("| 16 | incorrect |") == 1
    assert "0 finding" in command("results", "check", run_id)
