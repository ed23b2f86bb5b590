"""What a run records of its machine, also where a tool that would tell is missing."""

import subprocess
from pathlib import Path

import pytest

from results.records import Run
from runner.machine import nvml
from runner.machine.devices import DeviceInfo, hashed
from runner.machine.environment import describe
from runner.supervise import other_version

CPU = DeviceInfo("cpu", "cpu", "a processor", "cpu")


def test_the_facts_fit_a_run_and_a_hash_hides_its_text_and_is_stable() -> None:
    run = Run("r", "local", **describe(CPU))
    assert (run.device_type, run.gpu_name, run.tf32) == ("cpu", "a processor", False)
    assert all((run.torch, run.python, run.os, run.cpu, run.kernel_hash))
    assert len(run.host) == 12
    assert hashed("GPU-1234") == hashed("GPU-1234") != hashed("GPU-1235")
    assert "1234" not in hashed("GPU-1234")


def test_without_git_the_commit_is_unknown(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = describe(CPU)
    assert (found["git_commit"], found["git_dirty"]) == (None, None)


def test_a_dirty_checkout_is_called_dirty(monkeypatch, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    monkeypatch.setattr(other_version, "REPOSITORY", tmp_path)
    assert describe(CPU)["git_dirty"] is False
    (tmp_path / "file").write_text("two")
    assert describe(CPU)["git_dirty"] is True


def test_without_nvml_nothing_is_known_and_nothing_breaks(monkeypatch) -> None:
    monkeypatch.setattr(nvml, "pynvml", None)
    assert nvml.find("GPU-1234") is None
    assert nvml.driver_version() is None or nvml.driver_version()[0].isdigit()


@pytest.mark.parametrize("uuid", ["", "GPU-does-not-exist"])
def test_an_unknown_gpu_is_none(uuid: str) -> None:
    assert nvml.find(uuid) is None
