"""A sweep whose disk is full, limited or not to be written ends with a sentence and loses nothing."""

import resource

import pytest

from tests.runner.small_sweeps import FAST, FAST_ROWS, latencies


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep_with_a_sentence_and_loses_nothing(runner, small_disk) -> None:
    runner.home = small_disk("size=64k")
    runner.environment["ATTNBENCH_HOME"] = str(runner.home)
    runner.use("fast_worker")
    done = runner("run", *FAST)
    assert done.returncode == 1
    assert "the disk is full; free some space and resume the run." in done.stderr
    kept = runner.lines()
    assert 0 < len(kept) < FAST_ROWS
    small_disk("size=16m")
    assert runner("run", "--resume", runner.folder().run_id).returncode == 0
    assert runner.lines()[: len(kept)] == kept
    assert len(latencies(runner.folder())) == FAST_ROWS


@pytest.mark.slow
def test_a_file_size_limit_ends_the_sweep_with_a_sentence_and_loses_nothing(runner) -> None:
    runner.use("fast_worker")
    done = runner("run", *FAST, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)))
    assert done.returncode == 1
    assert "the file size limit is reached" in done.stderr
    kept = runner.lines()
    assert 0 < len(kept) < FAST_ROWS
    assert runner("run", "--resume", runner.folder().run_id).returncode == 0
    assert runner.lines()[: len(kept)] == kept
    assert len(latencies(runner.folder())) == FAST_ROWS


def test_a_read_only_home_is_refused_with_a_sentence(runner, small_disk) -> None:
    small_disk("size=64k")
    runner.home = small_disk("ro")
    runner.environment["ATTNBENCH_HOME"] = str(runner.home)
    runner.use("fast_worker")
    done = runner("run", *FAST)
    assert done.returncode == 1
    assert "set ATTNBENCH_HOME to a folder that can be written" in done.stderr
