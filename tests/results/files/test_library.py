"""Runs go to the trash and come back whole."""

from contextlib import closing
from dataclasses import replace

import pytest

from results.files import library
from results.files.journal import JournalError, RunBusy, RunFolder
from results.records import Measurement, Run, Status, attention_case
from results.store.database import open_store

CASE = attention_case(batch=1, num_heads=1, seqlen=128, head_dim=64, dtype="float16", causal=True)


@pytest.fixture
def home(home):
    row = Measurement("a", CASE, "x", "latency_ms", Status.OK, mode="fwd", timing="kernel", value=1.0)
    RunFolder.create(home, Run("a", "local"), [row])
    RunFolder.create(home, Run("b", "upload"), [replace(row, run_id="b", value=2.0)])
    return home


def _numbers(home):
    with closing(open_store(home)) as store:
        return store.rows("SELECT run_id, value FROM measurements ORDER BY run_id")


def test_a_deleted_run_leaves_the_results_and_comes_back_with_its_numbers(home):
    before = (home / "runs" / "a" / "measurements.jsonl").read_bytes()
    deleted = library.delete(home, "a")
    assert _numbers(home) == [("b", 2.0)]
    assert library.deleted_runs(home) == [deleted]
    library.restore(home, deleted)
    assert _numbers(home) == [("a", 1.0), ("b", 2.0)]
    assert (home / "runs" / "a" / "measurements.jsonl").read_bytes() == before
    assert library.deleted_runs(home) == []
    assert list((home / "trash").iterdir()) == []


def test_a_run_that_is_being_measured_is_not_deleted(home):
    with RunFolder.open(home, "a").lock(), pytest.raises(RunBusy):
        library.delete(home, "a")
    assert len(_numbers(home)) == 2


def test_two_runs_of_one_name_can_both_lie_in_the_trash(home):
    first = library.delete(home, "a")
    RunFolder.create(home, Run("a", "local"), [])
    second = library.delete(home, "a")
    assert [found.when for found in library.deleted_runs(home)] == [second.when, first.when]
    library.restore(home, first)
    with pytest.raises(JournalError, match="There is a run 'a' again"):
        library.restore(home, second)


def test_what_is_gone_from_the_trash_says_so(home):
    deleted = library.delete(home, "a")
    (deleted.path / "measurements.jsonl").unlink()
    for path in sorted(deleted.path.iterdir()):
        path.unlink()
    deleted.path.rmdir()
    with pytest.raises(JournalError, match="cannot be brought back"):
        library.restore(home, deleted)


def test_a_run_is_found_without_reading_the_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    RunFolder.create(tmp_path, Run("one", "local"))
    RunFolder.create(tmp_path, Run("two", "local"))
    monkeypatch.setattr(RunFolder, "run", lambda folder: pytest.fail(f"{folder.run_id} was read"))
    assert library.find("two").run_id == "two"
    assert [library.find(name) for name in ("three", "", ".", "..", "../runs/one", "/etc")] == [None] * 6
