"""`run --against` as a user starts it: a checkout, a commit whose torch_naive is slower, and the verdict at the end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from results.compare.against import compare_versions
from results.files.journal import run_folders
from results.records import Status
from tests.cases import HANG_S, cases
from tests.runner.conftest import BARE, ROOT

TINY = ("quick", "--device", "cpu", "--set", "seqlen=16", "--set", "dtype=float32", "--set", "head_dim=16")
TINY += ("--set", "modes=fwd", "--implementations", "torch_naive,torch_sdpa_math")
SLOW = """
_fast = attention


def attention(*args, **options):
    time.sleep(0.005)
    return _fast(*args, **options)
"""


class Checkout:
    """A copy of this checkout under git, in which kernels may be changed."""

    def __init__(self, place: Path) -> None:
        self.place, self.home = place, place.parent / "home"
        for name in ("kernels", "runner", "results"):
            ignored = shutil.ignore_patterns("published", "__pycache__", "*.duckdb*")
            shutil.copytree(ROOT / name, place / name, ignore=ignored)
        self.git("init", "-q")

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.place), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "a version")
        return self.git("rev-parse", "HEAD")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ATTNBENCH_HOME": str(self.home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BARE)}
        command = [sys.executable, "-m", "runner", "run", *words]
        return subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True, timeout=HANG_S)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.mark.slow
def test_a_slower_commit_is_found_and_what_it_lacks_is_gained_with_the_reason(checkout: Checkout) -> None:
    kernels = checkout.place / "kernels"
    names = ("attention/torch_naive.py", "attention/torch_sdpa.py", "implementations.toml")
    texts = {kernels / name: (kernels / name).read_text() for name in names}
    naive, *renamed = texts
    head, table = texts[naive].split("IMPLEMENTATIONS", 1)
    naive.write_text(f"{head.replace('import torch', 'import time; import torch', 1)}{SLOW}\n\nIMPLEMENTATIONS{table}")
    for path in renamed:
        path.write_text(texts[path].replace("torch_sdpa_", "torch_was_"))
    slow = checkout.commit()
    for path, text in texts.items():
        path.write_text(text)
    done = checkout.run(*TINY, "--against", slow)
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(checkout.home)
    run, rows = folder.run(), folder.read()[0]
    assert run.against["kernel_hash"] != run.kernel_hash
    cells = {cell.implementation: cell for cell in compare_versions(run, rows).cells}
    assert cells["torch_naive"].outcome == "FASTER"
    assert cells["torch_naive"].judgement.speedup > 5  # 5 ms beside a tenth of one
    assert f"FASTER  {cells['torch_naive'].judgement.speedup:.3f}x" in done.stdout
    assert f"Against {run.run_id}@{slow[:7]}, eager time: " in done.stdout
    missing = next(m for m in rows if m.implementation == f"torch_sdpa_math@{slow[:7]}" and m.metric == "latency_ms")
    assert (missing.status, missing.note) == (Status.UNSUPPORTED, "torch_sdpa_math is not part of this checkout.")
    assert cells["torch_sdpa_math"].outcome == "GAINED"


@pytest.mark.parametrize(
    ("words", "reason"), cases(__file__, "test_what_cannot_be_measured_beside_is_refused_before_anything_runs")
)
def test_what_cannot_be_measured_beside_is_refused_before_anything_runs(runner, words, reason: str) -> None:
    done = runner("run", *TINY, *words)
    assert done.returncode == 2
    assert reason in done.stderr
    assert run_folders(runner.home) == []
