"""What a sweep survives: workers and supervisors killed at any moment, hangs, and people who cancel."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from results.files.journal import run_folders
from results.records import Status
from runner.locks import device_lock
from tests.cases import HANG_S
from tests.runner.conftest import ROOT
from tests.runner.fast_worker import number_of
from tests.runner.small_sweeps import FAST, FAST_ROWS, FEW, TINY, latencies, statuses

KILLS = int(os.environ.get("ATTNBENCH_KILLS", "9"))
FEW_KILLS = KILLS if "ATTNBENCH_KILLS" in os.environ else 3
LENGTHS = -(-KILLS // 6)  # seqlens of a sweep that has rows for all kills


def test_every_cell_gets_its_number_and_a_resume_measures_what_is_lost_by_the_same_kernels_alone(runner) -> None:
    runner.use("fast_worker")
    done = runner("run", *FAST)
    assert done.returncode == 0, done.stderr
    folder = runner.folder()
    assert done.stdout.split() == [folder.run_id]
    assert len(latencies(folder)) == FAST_ROWS
    assert folder.run().command.startswith("python -m runner run fa2_speedup --device cuda:0 --standard")
    state = folder.read_state()
    assert (folder.condition(), state.done, state.total) == ("finished", FAST_ROWS // 2, FAST_ROWS // 2)
    assert "the fast worker is here" in folder.log_path.read_text()
    resume, before = ("run", "--resume", folder.run_id), runner.lines()
    assert runner(*resume).returncode == 0
    assert runner.lines() == before, "of a finished run nothing is left to measure"
    folder.journal_path.write_bytes(folder.journal_path.read_bytes()[:-30])
    assert runner(*resume).returncode == 0
    assert len(latencies(folder)) == FAST_ROWS, "a torn line is measured again"
    folder.run_path.write_text(json.dumps(json.loads(folder.run_path.read_text()) | {"kernel_hash": "other"}))
    done = runner(*resume)
    assert done.returncode == 2
    assert "was measured with kernel_hash 'other', now it is 'kernels'" in done.stderr


@pytest.mark.slow
def test_a_finished_sweep_is_in_the_database_where_there_is_one(runner, request) -> None:
    duckdb = pytest.importorskip("duckdb", reason="no database is installed")
    shipped = request.getfixturevalue("shipped")
    runner.use("fast_worker")
    runner.environment["PYTHONPATH"] = str(ROOT)
    shutil.copyfile(shipped, runner.home / shipped.name)
    assert runner("run", *FEW).returncode == 0
    with duckdb.connect(runner.home / shipped.name, read_only=True) as store:
        found = store.execute("SELECT count(*) FROM measurements WHERE run_id = ?", [runner.folder().run_id]).fetchone()
    assert found == (24,)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count"), [("supervisor", KILLS), ("group", FEW_KILLS)])
def test_kill_9_of_the_supervisor_at_many_moments_loses_and_doubles_nothing(runner, wait_for, what, count) -> None:
    """Alone, or together with its worker."""
    pids = runner.home.parent / "pids"
    runner.use("fast_worker", delay_s=0.004, pids=str(pids))
    lengths = f"seqlen={','.join(str(128 * number) for number in range(1, LENGTHS + 1))}"
    kills, acknowledged, words = 0, [], ("run", *FAST[:2], lengths, *FAST[3:])
    for moment in range(4 * count):  # a worker that is still ending may hold the device, and the sweep be refused
        if kills == count:
            break
        process = runner.start(*words)
        target = len(acknowledged) + (0 if moment % 6 == 5 else 1 + moment % 4)
        wait_for(lambda p=process, n=target: p.poll() is not None or under_way(runner, n), f"row {target}")
        if process.poll() is None:
            process.kill()
            kills += 1
            if what == "group":
                kill_worker(pids)
        process.communicate()
        lines = runner.lines()
        assert lines[: len(acknowledged)] == acknowledged
        acknowledged = lines
        words = ("run", "--resume", runner.folder().run_id)
    assert kills == count
    assert 0 < len(acknowledged) < FAST_ROWS // 2 * LENGTHS
    assert runner(*words).returncode == 0
    assert runner.lines()[: len(acknowledged)] == acknowledged
    rows = latencies(runner.folder())
    assert len(rows) == FAST_ROWS // 2 * LENGTHS
    assert all(row.value == number_of(row.measurement_id) for row in rows.values())
    for pid in pids.read_text().split():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"the end of worker {pid}")


def kill_worker(pids: Path) -> None:
    """Kill the last worker that has started, if it has not ended."""
    with suppress(ProcessLookupError):
        os.kill(int(pids.read_text().split()[-1]), signal.SIGKILL)


@pytest.mark.slow
def test_kill_9_of_the_worker_at_many_moments_costs_one_cell_at_most(runner, wait_for) -> None:
    pids = runner.home.parent / "pids"
    runner.use("fast_worker", delay_s=0.004, pids=str(pids))
    for moment in range(FEW_KILLS):
        shutil.rmtree(runner.home / "runs", ignore_errors=True)
        process = runner.start("run", *FEW)
        wait_for(lambda p=process, n=1 + moment % 23: p.poll() is not None or under_way(runner, n), "some rows")
        kill_worker(pids)
        assert process.wait(timeout=HANG_S) == 0, process.communicate()[1]
        process.communicate()
        rows = latencies(runner.folder())
        bad = {(*key[:2], key[3]): row.note for key, row in rows.items() if row.status is not Status.OK}
        assert len(rows) == 24 and len(bad) <= 1
        assert all("killed by signal 9 (SIGKILL)" in note and "timing" in note for note in bad.values())
        assert all(row.value == number_of(row.measurement_id) for row in rows.values() if row.status is Status.OK)


def under_way(runner, rows: int) -> bool:
    """Whether so many rows are written and the supervisor holds its run."""
    return len(runner.lines()) >= rows and bool(run_folders(runner.home)) and runner.folder().is_alive()


@pytest.mark.slow
def test_kill_9_of_the_supervisor_of_a_real_worker_loses_nothing_and_a_kernel_that_hangs_is_ended(runner, wait_for):
    runner.use("faulty_worker")
    names, limit = ("torch_naive", "torch_sdpa_math", "hangs", "kills_itself"), ("--step-limit", "20")
    process = runner.start("run", *TINY, "--implementations", ",".join(names), "--set", "modes=fwd", *limit)
    wait_for(lambda: process.poll() is not None or under_way(runner, 2), "the first rows")
    process.kill()
    process.communicate()
    before = runner.lines()
    done = runner("run", "--resume", runner.folder().run_id, *limit)
    assert done.returncode == 0, done.stderr
    assert runner.lines()[: len(before)] == before
    bad = {("hangs", "fwd"): Status.TIMEOUT, ("kills_itself", "fwd"): Status.ERROR}
    assert statuses(runner.folder()) == dict.fromkeys(((name, "fwd") for name in names), Status.OK) | bad
    found = latencies(runner.folder())
    assert len(found) == 8
    (note,) = (row.note for key, row in found.items() if (key[0], key[2]) == ("kills_itself", "eager"))
    assert note.startswith("The worker was killed by signal 9 (SIGKILL)")


def test_a_hang_costs_the_cell_it_was_at(runner) -> None:
    runner.use("fast_worker", stuck_at=["torch_naive", "fwd_bwd", 128])
    done = runner("run", *FEW, "--step-limit", "0.5")
    assert done.returncode == 0, done.stderr
    bad = {key[:4]: row for key, row in latencies(runner.folder()).items() if row.status is not Status.OK}
    assert set(bad) == {("torch_naive", "fwd_bwd", timing, 128) for timing in ("kernel", "eager")}
    assert {row.status for row in bad.values()} == {Status.TIMEOUT}
    assert all(row.note.startswith("No answer within") for row in bad.values())


@pytest.mark.slow
def test_an_implementation_that_keeps_crashing_is_given_up(runner) -> None:
    runner.use("fast_worker", dies_at=["torch_naive", "fwd", 128])
    done = runner("run", "fa2_speedup", "--set", "seqlen=128", "--set", "modes=fwd", "--implementations", "torch_naive")
    assert done.returncode == 0, done.stderr
    counts = Counter(row.status for row in latencies(runner.folder()).values())
    assert counts == {Status.ERROR: 12, Status.SKIPPED: 4}  # 6 workers lost, then 2 of 8 cells not tried


def test_a_worker_that_never_starts_ends_the_sweep_with_its_last_words(runner) -> None:
    runner.use("fast_worker", dies_on_start=True)
    done = runner("run", *FAST)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "The worker does not start. The worker ended with exit code 5; its last words: the fast worker is here"
    )
    assert run_folders(runner.home) == []


@pytest.mark.slow
def test_faults_of_real_kernels_cost_their_cells_alone(runner) -> None:
    runner.use("faulty_worker")
    names = "zeros,out_of_memory,out_of_resources,raises,broken_backward,torch_naive"
    done = runner("run", *TINY, "--implementations", names)
    assert done.returncode == 0, done.stderr
    found = statuses(runner.folder())
    expected = dict.fromkeys(("fwd", "bwd", "fwd_bwd"))
    for name, status in (
        ("zeros", Status.INCORRECT),
        ("out_of_memory", Status.OOM),
        ("out_of_resources", Status.OUT_OF_RESOURCES),
        ("raises", Status.ERROR),
        ("torch_naive", Status.OK),
    ):
        assert {mode: found[name, mode] for mode in expected} == dict.fromkeys(expected, status), name
    assert [found["broken_backward", mode] for mode in expected] == [Status.OK, Status.INCORRECT, Status.INCORRECT]
    notes = {m.implementation: m.note for m in runner.folder().read()[0] if m.metric == "latency_ms"}
    assert notes["out_of_memory"] == "Out of device memory: needed 16.00 GiB more, 3.20 GiB of 8.00 GiB were free."
    assert notes["out_of_resources"] == "Out of shared memory: required 300000, limit 232448."
    assert notes["raises"] == "RuntimeError: a fault of its own (in its check of the forward)"
    assert notes["zeros"].startswith("out is wrong: relative error 1 (allowed ")


@pytest.mark.gpu
def test_a_fault_of_a_gpu_costs_a_worker_and_its_own_cells(runner) -> None:
    runner.use("faulty_worker")
    words = ("quick", "--quick", "--set", "seqlen=128", "--set", "dtype=float16")
    done = runner("run", *words, "--implementations", "device_fault,too_large,torch_naive,torch_sdpa_flash")
    assert done.returncode == 0, done.stderr
    for timing in ("kernel", "eager"):
        found = {name: status for (name, _), status in statuses(runner.folder(), timing).items()}
        assert found == {
            "device_fault": Status.ERROR,
            "too_large": Status.OOM,
            "torch_naive": Status.OK,
            "torch_sdpa_flash": Status.OK,
        }
    notes = {m.implementation: m.note for m in runner.folder().read()[0] if m.metric == "latency_ms"}
    assert notes["too_large"].startswith("Out of device memory: needed 32768.00 GiB more, ")
    assert "device-side assert" in notes["device_fault"]


def test_a_taken_device_is_refused_with_the_name_of_who_has_it(runner) -> None:
    runner.use("fast_worker")
    with device_lock(runner.home, "gpu-test", "some-run"):
        done = runner("run", *FAST)
    assert done.returncode == 3
    assert done.stderr.strip() == ("The device is taken by some-run; wait for it, cancel it, or choose another device.")
    assert run_folders(runner.home) == []


@pytest.mark.parametrize("how", ["flag", "SIGINT", "SIGTERM"])
def test_a_cancelled_sweep_keeps_what_it_has_and_can_be_resumed(runner, wait_for, how) -> None:
    runner.use("fast_worker", stuck_at=["triton_fa2", "bwd", 256])
    process = runner.start("run", *FAST)
    wait_for(lambda: under_way(runner, 3), "three rows")
    folder = runner.folder()
    if how == "flag":
        folder.request_cancel()
    else:
        process.send_signal(getattr(signal, how))
    assert process.wait(timeout=HANG_S) == 130
    said = process.communicate()[1].splitlines()[-1]
    again = f"python -m runner run --resume {folder.run_id}"
    assert said == f"Cancelled; the measurements are kept. To resume: {again}"
    assert (folder.condition(), folder.is_alive()) == ("cancelled", False)
    assert 3 <= len(latencies(folder)) < FAST_ROWS
    runner.use("fast_worker")
    assert runner("run", "--resume", folder.run_id).returncode == 0
    assert (folder.condition(), len(latencies(folder))) == ("finished", FAST_ROWS)


def test_the_supervisor_and_the_command_line_never_import_torch() -> None:
    code = (
        "import runner.__main__, runner.supervise.supervisor, runner.launch, sys;"
        "print(sorted({'torch', 'triton', 'kernels', 'duckdb', 'pandas', 'pynvml'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout.strip() == "[]", answer.stderr
