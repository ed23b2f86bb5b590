"""Starting sweeps as the app does: refused with a sentence, or detached and under way."""

import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from results.files.journal import RunFolder, State, run_folders
from results.paths import REPOSITORY
from results.records import Run
from results.store.database import open_store
from runner import launch
from runner.__main__ import main
from runner.launch import LaunchError, SweepRequest, checked
from tests.cases import HANG_S, cases
from tests.runner.conftest import logs

SMALL = SweepRequest(
    "fa2_speedup", implementations=("torch_naive", "triton_fa2"), changes={"seqlen": "128,256", "head_dim": "16"}
)


@pytest.fixture
def home(runner, monkeypatch):
    """A home whose sweeps are measured by the fast worker."""
    runner.use("fast_worker", delay_s=0.02)
    for name in ("ATTNBENCH_HOME", "ATTNBENCH_WORKER", "ATTNBENCH_TEST_WORKER", "PYTHONPATH"):
        monkeypatch.setenv(name, runner.environment[name])
    yield runner.home
    for status in launch.runs():
        if status.state == "running":
            launch.cancel(status.run_id)
    for process in launch._children:
        process.wait(timeout=HANG_S)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        *cases(__file__, "test_a_request_out_of_bounds_is_refused_before_anything_starts"),
        ({"changes": {"seqlen": "9" * 5000}}, "seqlen 999"),
        ({"changes": {"seqlen": ",".join(["64"] * 25_000)}}, "This makes 25000 combinations"),
        (
            {"changes": {"seqlen": ",".join(map(str, range(1, 4000)))}, "implementations": ("torch_naive",)},
            "This makes 23994 cells; at most 20000 are possible.",
        ),
    ],
)
def test_a_request_out_of_bounds_is_refused_before_anything_starts(changes: dict, sentence: str) -> None:
    with pytest.raises(LaunchError) as refused:
        checked(SweepRequest(**{"sweep": "quick"} | changes))
    assert str(refused.value).startswith(sentence)


ONE = {"seqlen": "128", "head_dim": "64", "dtype": "float32", "modes": "fwd"}


def test_a_trace_of_one_cell_is_possible_where_something_is_timed_and_so_are_the_largest_values() -> None:
    request = SweepRequest("quick", implementations=("torch_naive",), changes=ONE, protocol="sustained")
    assert len(checked(request).cases()) == 1
    untimed = replace(request, sweep="accuracy", changes={**ONE, "inputs": "normal"})
    with pytest.raises(LaunchError, match="A trace needs a timing"):
        checked(untimed)
    checked(replace(untimed, changes={**untimed.changes, "timings": "kernel"}))
    request = SweepRequest("quick", changes={"seqlen": "1048576", "head_dim": "1024"})
    assert checked(request).seqlen == (1048576,)


@pytest.fixture
def asked_here(runner, monkeypatch, capsys) -> None:
    """Let questions be answered in this process, so that several cost one import of torch."""
    monkeypatch.setenv("ATTNBENCH_HOME", str(runner.home))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # which a plan sets, for its whole process

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        code = main(command[3:])
        return subprocess.CompletedProcess(command, code, *capsys.readouterr())

    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": answer}))


def test_plans_and_devices_come_from_the_machine(asked_here) -> None:
    request = SweepRequest("quick", implementations=("torch_naive",), changes={"seqlen": "64", "dtype": "float32"})
    found = launch.plan(request)
    assert (found["device"], found["cell_count"], found["skipped_count"]) == ("cpu", 3, 0)
    with pytest.raises(LaunchError, match="Unknown implementation 'nope'. Available: "):
        launch.plan(replace(request, implementations=("nope",)))
    trace = replace(request, changes=ONE, protocol="sustained")
    assert 30 < launch.plan(trace)["seconds"] < 40
    interpreted = launch.plan(replace(trace, implementations=("triton_fa2",)))
    assert interpreted["skipped_count"] == 1, "what is not timed has no trace"
    assert "interpreter" in interpreted["cells"][0]["reason"]


@pytest.mark.slow
def test_another_process_answers_what_needs_torch(runner, monkeypatch) -> None:
    monkeypatch.setenv("ATTNBENCH_HOME", str(runner.home))
    assert {"id": "cpu", "type": "cpu", "busy": None}.items() <= launch.devices()[-1].items()


APP = """
import sys
from results.files import journal
from results.store.database import open_store
from runner import launch
from runner.__main__ import main

wanted = eval(sys.argv[1])
print(launch.start(launch.SweepRequest(**wanted)) if wanted else "", flush=True)
store = open_store(journal.home())
while True:
    launch.runs(), store.refresh()
"""


@pytest.mark.slow
def test_a_sweep_ends_without_the_app_that_started_it(home, wait_for, monkeypatch, shipped) -> None:
    """Apps that start sweeps, follow them and read the database are killed at moments that nobody chose."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # with a database
    shutil.copyfile(shipped, home / shipped.name)
    dice, run_ids = random.Random(1), []

    def ended() -> launch.RunStatus | None:
        return found if (found := launch.status(run_ids[-1])).state == "finished" else None

    wanted = {"sweep": SMALL.sweep, "implementations": SMALL.implementations, "changes": SMALL.changes}
    for number in range(int(os.environ.get("ATTNBENCH_KILLS", "2"))):
        begins = number % 5 == 0
        command = [sys.executable, "-c", APP, repr(wanted if begins else None)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as app:
            if said := app.stdout.readline().strip():
                run_ids.append(said)
            time.sleep(dice.uniform(0, 0.5))
            app.kill()
        if number % 5 == 4:
            wait_for(ended, "the end of the sweep", lambda: logs(home))
    status = wait_for(ended, "the end of the sweep", lambda: logs(home))
    assert (status.done, status.total, status.sweep, status.device) == (24, 24, "fa2_speedup", "Test GPU")
    assert {s.run_id for s in launch.runs()} == {*run_ids}
    with closing(open_store(home)) as store:
        found = store.rows("SELECT run_id, count(DISTINCT measurement_id), count(*) FROM measurements GROUP BY 1")
        assert store.notice is None
    assert {row for row in found if row[0] in run_ids} == {(run_id, 48, 48) for run_id in run_ids}


def test_a_second_sweep_on_a_device_is_refused_with_the_name_of_the_first(home, runner, monkeypatch) -> None:
    runner.use("fast_worker", stuck_at=["torch_naive", "fwd", 128])  # the fixture cancels it
    monkeypatch.setenv("ATTNBENCH_TEST_WORKER", runner.environment["ATTNBENCH_TEST_WORKER"])
    run_id = launch.start(SMALL)
    assert launch.status(run_id).state == "running"
    with pytest.raises(LaunchError, match=f"The device is taken by {run_id}"):
        launch.start(SMALL)
    assert [status.run_id for status in launch.runs()] == [run_id]
    assert [log.stem for log in (home / "logs").iterdir()] == [run_id]


@pytest.mark.slow
def test_a_cancelled_sweep_can_be_resumed_to_its_end(home, wait_for, monkeypatch) -> None:
    monkeypatch.setenv("ATTNBENCH_TEST_WORKER", '{"stuck_at": ["triton_fa2", "bwd", 256]}')
    run_id = launch.start(SMALL)
    wait_for(lambda: launch.status(run_id).done, "the first cell", lambda: logs(home))
    launch.cancel(run_id)
    status = wait_for(lambda: (s := launch.status(run_id)).state != "running" and s, "the cancel")
    monkeypatch.setenv("ATTNBENCH_TEST_WORKER", "{}")
    assert (status.state, status.message) == ("cancelled", "Cancelled. It can be resumed.")
    with pytest.raises(LaunchError, match="is not running; it is cancelled"):
        launch.cancel(run_id)
    wait_for(lambda: launch.runs() is not None and not launch._children, "the end of the process")
    launch.resume(run_id)
    wait_for(lambda: launch.status(run_id).state == "finished", "the end of the sweep", lambda: logs(home))


def test_a_sweep_that_ends_between_two_looks_has_the_message_of_its_end(tmp_path, monkeypatch) -> None:
    RunFolder.create(tmp_path, Run("r1", "local"))
    states = iter((State("running", done=1, total=2), State("cancelled", done=1, total=2, message="Cancelled.")))
    monkeypatch.setattr(RunFolder, "read_state", lambda folder: next(states))
    status = launch.status("r1", tmp_path)
    assert (status.state, status.message) == ("cancelled", "Cancelled.")


def test_a_killed_sweep_reads_as_crashed_and_leaves_no_zombie(home, wait_for) -> None:
    run_id = launch.start(SMALL)
    (process,) = launch._children
    process.kill()
    wait_for(lambda: launch.status(run_id).state == "crashed", "the crash to be seen")
    wait_for(lambda: launch.runs() is not None and not launch._children, "the process to be reaped")
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_sweep_that_cannot_start_says_why_or_that_the_disk_is_full_and_leaves_nothing(runner, home, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_TEST_WORKER", '{"dies_on_start": true}')
    with pytest.raises(LaunchError, match="The worker does not start. The worker ended with exit code 5"):
        launch.start(SMALL)
    assert run_folders(home) == []
    assert list((home / "logs").iterdir()) == []
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(LaunchError, match="the disk is full; free some space and start again"):
        launch.start(SMALL)


def test_an_unknown_run_has_no_status_and_what_is_no_address_is_not_asked(home) -> None:
    with pytest.raises(LaunchError, match="'gpu1; reboot' is not an address"):
        launch.cluster("gpu1; reboot")
    for action in (launch.status, launch.cancel, launch.resume):
        with pytest.raises(LaunchError, match="There is no run 'nothing'"):
            action("nothing")
