"""A home with one run, a store over it, and nothing published."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from results.files import journal
from results.files.journal import RunFolder
from results.records import Measurement, Run, Status, attention_case
from results.store.database import Store, open_store
from tests.cases import cases

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)

FULL = Measurement("r1", CASE, "torch_naive", "latency_ms", Status.OK, **cases(__file__, "FULL"))


def latency(number: int, run_id: str = "r1", **changes) -> Measurement:
    return replace(FULL, run_id=run_id, origin=str(number), value=1.0 + number, **changes)


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "published")
    return tmp_path / "published"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(home: Path) -> RunFolder:
    return RunFolder.create(home, Run("r1", "local", created="2026-11-21T08:00:00Z", gpu_name="H200"))


@pytest.fixture
def opened(home: Path, folder: RunFolder):
    with closing(open_store(home)) as opened:
        yield opened


def count(opened: Store, table: str = "measurements") -> int:
    return opened.rows(f"SELECT count(*) FROM {table}")[0][0]


def publish(published: Path, run_id: str, numbers: range) -> RunFolder:
    made = RunFolder.create(published.parent / "x", Run(run_id, "published"), [latency(n, run_id) for n in numbers])
    (published / run_id).parent.mkdir(exist_ok=True)
    return RunFolder(made.path.rename(published / run_id))


def in_python(code: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=journal.REPOSITORY, stdout=subprocess.PIPE, text=True, **options
    )
