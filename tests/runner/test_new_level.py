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
IN_TURN = """
import contextlib, importlib, io, json, shlex, sys
main, said = importlib.import_module(f"{sys.argv[1]}.__main__").main, []
for words in sys.argv[2:]:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), write_through=True)) as out:
        assert main(shlex.split(words)) == 0, words
    said.append(out.buffer.getvalue().decode())
print(json.dumps(said))
"""
LEFT_OUT = shutil.ignore_patterns("published", "runs", "logs", "trash", "*.duckdb*", "*.md")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Run commands of a package in one process, in a copy of the source tree that has the new level."""
    tree = tmp_path_factory.mktemp("checkout")
    for package in ("kernels", "results", "runner"):
        shutil.copytree(REPOSITORY / package, tree / package, ignore=LEFT_OUT)
    for name, place in PLACES.items():
        shutil.copy(TOY / f"{name}.py", tree / place / "softmax.py")
    records = tree / "results" / "records.py"
    assert records.read_text().count(LIST) == 1
    records.write_text(records.read_text().replace(LIST, LIST.replace(")", ', "softmax")')))
    environment = {**os.environ, "ATTNBENCH_HOME": str(tree / "home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}

    def run(package: str, *commands: str) -> list[str]:
        words = [sys.executable, "-c", IN_TURN, package, *commands]
        done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def told(command: Callable[..., list[str]]) -> list[str]:
    """Return the list of implementations, the plan, and the id of a run, as the runner prints them."""
    return command("runner", "list --json", "plan softmax --device cpu --json", "run softmax --device cpu --quick")


@pytest.fixture(scope="module")
def shown(command: Callable[..., list[str]], told: list[str]) -> list[str]:
    """Return the export, the map and the check of the run."""
    run = told[2].strip()
    return command("results", f"export --run {run}", f"render --workload 'softmax softmax' --run {run}", f"check {run}")


def test_its_implementations_are_listed_and_its_cells_planned(told: list[str]) -> None:
    listed, planned = json.loads(told[0])["implementations"], json.loads(told[1])
    assert [each["name"] for each in listed if each["level"] == "softmax"] == ["torch_naive", "by_exp", "unscaled"]
    assert (planned["cell_count"], planned["skipped_count"]) == (6, 0)
    assert all(0 < cell["seconds"] < 1 for cell in planned["cells"])


def test_its_run_is_checked_timed_and_exported(shown: list[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(shown[0])))
    assert {row["level"] for row in rows} == {"softmax"}
    latencies = [row for row in rows if row["metric"] == "latency_ms" and row["timing"] == "eager"]
    assert {(row["implementation"], row["status"]) for row in latencies} == {
        ("torch_naive", "ok"),
        ("by_exp", "ok"),
        ("unscaled", "incorrect"),
    }
    errors = [row for row in rows if row["metric"] == "error_out"]
    assert len(errors) == 6 and all(float(row["value"]) < 1e-6 for row in errors if row["implementation"] == "by_exp")


def test_its_cells_are_on_a_map_by_its_own_axes(shown: list[str]) -> None:
    _, drawn, findings = shown
    assert "| float32, rows | columns 8 |" in drawn
    assert drawn.count("| 16 | incorrect |") == 1
    assert "impossible" not in findings  # a busy computer may make one of its times doubtful
