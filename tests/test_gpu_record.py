"""The record of GPU test runs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest, gpu_record

torch = pytest.importorskip("torch")


def test_the_newest_run_of_a_gpu_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "record.json"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for gpu, passed in (("H100", 1), ("H200", 2), ("H100", 3)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu=gpu: gpu)
        gpu_record.add({"passed": passed, "failed": 1}, [SimpleNamespace(nodeid="t.py::b")], place)
    entries = json.loads(place.read_text())
    assert {gpu: entry["passed"] for gpu, entry in entries.items()} == {"H100": 3, "H200": 2}
    assert entries["H100"]["failures"] == ["t.py::b"]


def test_a_machine_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        gpu_record.add({}, [], tmp_path / "record.json")


def test_a_file_that_no_worker_could_collect_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list] = {
        "passed": [1, 2],
        "skipped": [],
        "failed": [],
        "error": [SimpleNamespace(nodeid="t.py")] * 2,
    }
    noted: list = []
    monkeypatch.setattr(gpu_record, "add", lambda *given: noted.extend(given))
    config = SimpleNamespace(getoption=lambda name: True)
    conftest.pytest_terminal_summary(SimpleNamespace(getreports=found.get), config)
    assert noted == [{"passed": 2, "skipped": 0, "failed": 1}, found["error"][:1]]
