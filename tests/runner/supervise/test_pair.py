"""Two versions in one sweep: they take turns, a loss costs its own cell, and no half of a pair is measured later."""

import json
import os
import sys
from collections import Counter
from itertools import groupby

import pytest

from results.files.journal import RunFolder, run_folders
from results.records import Status
from runner.supervise.other_version import git
from runner.supervise.pair import CUT_OFF
from tests.runner.small_sweeps import FEW, latencies

HEAD = (git("rev-parse", "HEAD") or b"").decode().strip()
pytestmark = pytest.mark.skipif(not HEAD, reason="the checkout is no git repository")
PAIRED = ("run", *FEW, "--against", "HEAD")
ROWS = 48  # 12 cells of two versions in two timings


def pairs(folder: RunFolder) -> dict[tuple, set[str]]:
    """The versions that have a number, by case, implementation, mode and timing."""
    found: dict[tuple, set[str]] = {}
    for row in folder.read()[0]:
        name, _, label = row.implementation.partition("@")
        key = (row.case, name, row.mode, row.timing)
        found.setdefault(key, set()).update({label or "ours"} if row.status is Status.OK else ())
    return found


def test_each_cell_has_both_versions_in_turns_and_the_run_says_which(runner, tmp_path) -> None:
    runner.use("fast_worker", turns=str(tmp_path / "turns"))
    done = runner(*PAIRED)
    assert done.returncode == 0, done.stderr
    folder, run = runner.folder(), runner.folder().run()
    assert len(latencies(folder)) == ROWS
    assert set(map(frozenset, pairs(folder).values())) == {frozenset({"ours", HEAD[:7]})}
    assert run.against["label"] == HEAD[:7] and run.against["git_commit"] == HEAD
    assert run.implementations[f"triton_fa2@{HEAD[:7]}"]["version_of"] == "triton_fa2"
    assert run.sweep["implementations"] == ["torch_naive", "triton_fa2"]
    assert (run.protocol, run.command.split(" --")[1:3]) == ("paired/1", ["device cuda:0", f"against {HEAD}"])
    assert done.stdout.splitlines()[0] == run.run_id
    turns = [line.split(maxsplit=2) for line in (tmp_path / "turns").read_text().splitlines()]
    assert len(turns) == 2 * 12 * 2  # rounds, cells, versions
    first = turns[0][0]
    for (number, _), both in groupby(turns, key=lambda turn: turn[1:]):
        one, other = (pid for pid, *_ in both)
        assert one != other
        assert (one == first) == (number == "0"), "who begins changes with the round"
    record = json.loads(folder.run_path.read_text())
    folder.run_path.write_text(json.dumps(record | {"against": record["against"] | {"kernel_hash": "another"}}))
    done = runner("run", "--resume", folder.run_id)
    assert done.returncode == 2, done.stderr
    assert "the numbers cannot be compared" in done.stderr


def test_the_gate_is_one_command_for_sweeps_of_two_levels(runner) -> None:
    runner.use("fast_worker")
    done = runner("run", "gate_warm,gate_decode", "--against", "HEAD")
    assert done.returncode == 0, done.stderr
    runs = {folder.run().sweep["name"]: folder for folder in run_folders(runner.home)}
    protocols = {name: folder.run().protocol for name, folder in runs.items()}
    assert protocols == {"gate_warm": "warm/1", "gate_decode": "paired/1"}
    assert all(len(versions) == 2 for folder in runs.values() for versions in pairs(folder).values())


@pytest.mark.slow
def test_a_worker_that_dies_costs_the_cell_of_its_version(runner) -> None:
    runner.use("fast_worker", dies_at=["triton_fa2", "bwd", 256])
    done = runner(*PAIRED)
    assert done.returncode == 0, done.stderr
    bad = {key[:4]: row for key, row in latencies(runner.folder()).items() if row.status is not Status.OK}
    names = {"triton_fa2", f"triton_fa2@{HEAD[:7]}"}
    assert set(bad) == {(name, "bwd", timing, 256) for name in names for timing in ("kernel", "eager")}
    notes = {name: row.note for (name, *_), row in bad.items()}
    assert notes["triton_fa2"].startswith("This version's worker was killed by signal 11")
    assert notes[f"triton_fa2@{HEAD[:7]}"].startswith("The other version's worker was killed by signal 11")


@pytest.mark.slow
def test_kill_9_and_resume_leaves_whole_pairs_or_says_that_one_was_cut(runner, wait_for) -> None:
    runner.use("fast_worker", delay_s=0.004)
    words, seen = PAIRED, 0
    for _ in range(int(os.environ.get("ATTNBENCH_KILLS", "2"))):
        process = runner.start(*words)
        wait_for(lambda p=process, n=seen: p.poll() is not None or len(runner.lines()) > n, "a row")
        process.kill()
        process.communicate()
        seen = len(runner.lines())
        words = ("run", "--resume", runner.folder().run_id)
    done = runner(*words)
    assert done.returncode == 0, done.stderr
    folder = runner.folder()
    rows = latencies(folder).values()
    assert len(rows) == ROWS
    cut = Counter(row.note for row in rows if row.status is not Status.OK)
    assert set(cut) <= {CUT_OFF}
    halves = [versions for versions in pairs(folder).values() if len(versions) == 1]
    assert len(halves) == cut[CUT_OFF]


def test_another_python_is_the_other_side_of_every_implementation(runner) -> None:
    runner.use("fast_worker")
    done = runner("run", *FEW, "--against-python", sys.executable)
    assert done.returncode == 0, done.stderr
    folder, run = runner.folder(), runner.folder().run()
    assert set(map(frozenset, pairs(folder).values())) == {frozenset({"ours", "python"})}
    assert (run.against["label"], run.against["git_commit"]) == ("python", None)
    assert f"--against-python {sys.executable}" in run.command
    assert runner("run", "--resume", folder.run_id).returncode == 2  # the record alone names no program to start
    repeated = runner("run", "--resume", folder.run_id, "--against-python", sys.executable)
    assert repeated.returncode == 0, repeated.stderr
