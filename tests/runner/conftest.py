"""How the runner's tests start it: as on a GPU node without a database, in a process and a home of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():  # before anything imports triton, as for the tests of the kernels
    os.environ["TRITON_INTERPRET"] = "1"

from results.files.journal import RunFolder, run_folders
from runner import launch
from tests.cases import HANG_S

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BARE = HERE / "bare_node"  # on the path before what is installed


class Runner:
    """The command line in a home, with a worker that the test chooses."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            **os.environ,
            "ATTNBENCH_HOME": str(home),
            "PYTHONPATH": f"{BARE}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
        }

    def use(self, worker: str, **settings: Any) -> None:
        """Let tests/runner/<worker>.py be the worker; settings reach it as JSON in ATTNBENCH_TEST_WORKER."""
        self.environment["ATTNBENCH_WORKER"] = f"{sys.executable} {HERE / worker}.py"
        self.environment["ATTNBENCH_TEST_WORKER"] = json.dumps(settings)

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        command = [sys.executable, "-m", "runner", *words]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=HANG_S, **options
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run in the background."""
        command = [sys.executable, "-m", "runner", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=ROOT, env=self.environment, **pipes)
        self.started.append(process)
        return process

    def end(self) -> None:
        """Leave nothing running."""
        for process in self.started:
            process.kill()
            process.communicate()

    def folder(self) -> RunFolder:
        """The only run."""
        (folder,) = run_folders(self.home)
        return folder

    def lines(self) -> list[str]:
        """The complete lines of the only run's journal; none before it exists."""
        found = run_folders(self.home)
        return found[0].lines()[0].decode().splitlines() if found else []


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path / "home")
    yield runner
    runner.end()


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in this process have their home here, and set Triton's interpreter for one test only."""
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., Any]:
    """Waits for a condition, and fails at once if no run is left that could bring it."""

    def wait(condition: Callable[[], Any], what: str, lost: Callable[[], str] = lambda: "") -> Any:
        deadline = time.monotonic() + HANG_S
        while not (answer := condition()):
            why = lost() or (time.monotonic() > deadline and f"Waited {HANG_S:.0f} s.")
            assert not why or condition(), f"{what}: {why}"
            time.sleep(0.01)
        return answer

    return wait


def logs(home: Path, states: Sequence[str] = ("failed", "crashed")) -> str:
    """The logs of the runs that are in one of these states."""
    found = [status for status in launch.runs(home) if status.state in states]
    return "\n".join(f"{each.state}: {(home / 'logs' / f'{each.run_id}.txt').read_text()}" for each in found)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own, with the mount options given; only root can have one."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        flags = f"remount,{options}" if mounted else options
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", flags, "tmpfs", str(place)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"this machine mounts nothing: {done.stderr.strip()}")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)
