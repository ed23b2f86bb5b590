"""A sweep whose disk is full, limited or not to be written ends with a sentence and loses nothing."""

import resource
from functools import partial

import pytest

from tests.runner.small_sweeps import FAST, FAST_ROWS, latencies


def ends_and_is_resumed(runner, sentence: str, *, relieve=lambda: None, **limits) -> None:
    """A sweep ends with a sentence, and a resumed one keeps what it has and measures the rest."""
    runner.use("fast_worker")
    done = runner("run", *FAST, **limits)
    assert done.returncode == 1
    assert sentence in done.stderr
    kept = runner.lines()
    assert 0 < len(kept) < FAST_ROWS
    relieve()
    assert runner("run", "--resume", runner.folder().run_id).returncode == 0
    assert runner.lines()[: len(kept)] == kept
    assert len(latencies(runner.folder())) == FAST_ROWS


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep_with_a_sentence_and_loses_nothing(runner, small_disk) -> None:
    runner.home = small_disk("size=64k")
    runner.environment["ATTNBENCH_HOME"] = str(runner.home)
    sentence = "the disk is full; free some space and resume the run."
    ends_and_is_resumed(runner, sentence, relieve=lambda: small_disk("size=16m"))


@pytest.mark.slow
def test_a_file_size_limit_ends_the_sweep_with_a_sentence_and_loses_nothing(runner) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (30_000, 30_000))
    ends_and_is_resumed(runner, "the file size limit is reached", preexec_fn=limit)


def test_a_read_only_home_is_refused_with_a_sentence(runner, small_disk) -> None:
    small_disk("size=64k")
    runner.home = small_disk("ro")
    runner.environment["ATTNBENCH_HOME"] = str(runner.home)
    runner.use("fast_worker")
    done = runner("run", *FAST)
    assert done.returncode == 1
    assert "set ATTNBENCH_HOME to a folder that can be written" in done.stderr
