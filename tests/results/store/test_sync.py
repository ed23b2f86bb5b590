"""The store follows the folders: what comes, goes or changes there, and nothing twice."""

import json
import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from results.files import durable
from results.files.journal import RunFolder, line_of
from results.records import Run
from results.store.database import Store, open_store
from tests.results.store.conftest import count, latency, publish


def test_a_refresh_takes_what_is_new_and_the_version_changes_exactly_then(opened: Store, folder: RunFolder) -> None:
    seen = [opened.version()]
    for number in range(3):
        folder.append(latency(number))
        assert opened.refresh() == 1
        assert opened.version() not in seen
        seen.append(opened.version())
        assert opened.refresh() == 0
        assert opened.version() == seen[-1]
    assert count(opened, "results") == 3


def test_a_store_opened_again_goes_on_where_it_was(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    with closing(open_store(home)) as first:
        version = first.version()
    with closing(open_store(home)) as second:
        assert (second.version(), second.refresh(), count(second), second.notice) == (version, 0, 1, None)


def test_a_torn_line_is_taken_when_it_is_complete(opened: Store, folder: RunFolder) -> None:
    line = line_of(latency(1)).encode()
    folder.journal_path.write_bytes(line[:50])
    version = opened.version()
    assert (opened.refresh(), opened.problems, opened.version()) == (0, [], version)
    with open(folder.journal_path, "ab") as file:
        file.write(line[50:])
    assert (opened.refresh(), opened.problems) == (1, [])


@pytest.mark.parametrize("damaged", [0, 2], ids=["beginning", "middle"])
def test_a_longer_journal_written_in_place_is_read_from_its_beginning(opened, folder, damaged) -> None:
    """As `cp` of the right file over a damaged copy does: the file grows and keeps its inode."""
    folder.append(*(latency(number) for number in range(5)))
    right = folder.journal_path.read_bytes()
    lines = right.splitlines(keepends=True)
    lines[damaged] = b"x" * (len(lines[damaged]) - 1) + b"\n"
    folder.journal_path.write_bytes(b"".join(lines[:4]))
    assert opened.refresh() == 3
    folder.journal_path.write_bytes(right)
    opened.refresh()
    assert (count(opened), opened.problems) == (5, [])


def test_drafts_of_killed_processes_are_removed_and_those_of_others_stay(home: Path) -> None:
    runs = home / "runs"
    for name in (".upload-killed", ".new-killed", ".draft-killed"):
        (runs / name / "runs" / "half").mkdir(parents=True)
        os.utime(runs / name, (1, 1))
    with durable.draft(runs) as kept:
        os.utime(kept, (1, 1))
        assert [path.name for path in runs.iterdir()] == [kept.name]
        (runs / ".draft-killed").mkdir()
        os.utime(runs / ".draft-killed", (1, 1))
        open_store(home).close()
        assert [path.name for path in runs.iterdir()] == [kept.name]


def test_a_removed_run_disappears_and_comes_back(opened: Store, folder: RunFolder, tmp_path: Path) -> None:
    folder.append(latency(1))
    opened.refresh()
    version = opened.version()
    folder.path.rename(tmp_path / "away")
    opened.refresh()
    assert (count(opened), count(opened, "runs"), opened.problems) == (0, 0, [])
    assert opened.version() != version
    (tmp_path / "away").rename(folder.path)
    assert opened.refresh() == 1


def test_published_runs_are_always_there_and_a_changed_one_is_read_anew(opened: Store, published: Path) -> None:
    made = publish(published, "p1", range(3))
    assert opened.refresh() == 3
    version = opened.version()
    os.utime(made.journal_path, (1, 1))
    assert (opened.refresh(), opened.version()) == (0, version)
    text = made.journal_path.read_text()
    made.journal_path.write_text(text.replace('"value":1.0', '"value":9.0'))
    assert opened.refresh() == 3
    assert sorted(opened.rows("SELECT value FROM measurements")) == [(2.0,), (3.0,), (9.0,)]
    made.journal_path.write_text(line_of(latency(7, "p1")))
    assert opened.refresh() == 1
    assert opened.rows("SELECT value FROM measurements") == [(8.0,)]


def test_a_journal_that_was_replaced_is_read_anew(opened: Store, folder: RunFolder) -> None:
    folder.append(latency(1))
    folder.append(latency(2))
    opened.refresh()
    other = folder.path / "other"
    other.write_text("".join(line_of(latency(number)) for number in range(5, 9)))
    other.replace(folder.journal_path)
    assert opened.refresh() == 4
    assert count(opened) == 4


def test_an_own_run_stands_before_a_published_one_of_the_same_id(opened: Store, published: Path, home: Path) -> None:
    publish(published, "p1", range(3))
    own = RunFolder.create(home, Run("p1", "local"), [latency(number, "p1") for number in range(2)])
    opened.refresh()
    assert opened.rows("SELECT source, count(*) FROM results GROUP BY ALL") == [("local", 2)]
    shutil.rmtree(own.path)
    opened.refresh()
    assert opened.rows("SELECT source, count(*) FROM results GROUP BY ALL") == [("published", 3)]


def test_a_changed_run_record_is_read_again(opened: Store, folder: RunFolder) -> None:
    folder.append(latency(1))
    opened.refresh()
    version = opened.version()
    folder.write_run(replace(folder.run(), title="mended", sweep={"name": "quick"}))
    opened.refresh()
    assert opened.rows("SELECT title, sweep ->> 'name', created::VARCHAR FROM runs") == [
        ("mended", "quick", "2026-11-21 08:00:00")
    ]
    assert (opened.version() != version, count(opened, "results")) == (True, 1)


@pytest.mark.parametrize("text", ["", "{}", '{"run_id": "other", "source": "local"}'])
def test_a_run_whose_record_cannot_be_used_is_a_problem_until_it_can(opened, folder, text) -> None:
    good = folder.run_path.read_text()
    folder.append(latency(1))
    folder.run_path.write_text(text)
    opened.refresh()
    assert (count(opened, "runs"), [line for _, line, _ in opened.problems]) == (0, [0])
    folder.run_path.write_text(good)
    opened.refresh()
    assert (count(opened, "results"), opened.problems) == (1, [])


def test_a_run_with_a_fact_of_the_wrong_type_is_told_by_field(opened: Store, folder: RunFolder) -> None:
    record = json.loads(folder.run_path.read_text()) | {"seed": 2**40}
    folder.run_path.write_text(json.dumps(record | {"sm_count": "many"}))
    opened.refresh()
    assert count(opened, "runs") == 0 and "sm_count is 'many', not a whole number" in opened.problems[0][2]
    folder.run_path.write_text(json.dumps(record))
    opened.refresh()
    assert opened.rows("SELECT seed, gpu_name FROM runs") == [(2**40, "H200")]


def test_looking_for_news_among_fifty_runs_costs_two_stats_a_run(opened, home, monkeypatch) -> None:
    for number in range(50):
        RunFolder.create(home, Run(f"run{number}", "local"), [latency(1, f"run{number}")])
    assert opened.refresh() == 50
    monkeypatch.setattr(RunFolder, "lines", None)
    monkeypatch.setattr(RunFolder, "run", None)
    assert opened.refresh() == 0


def test_a_home_that_cannot_be_made_still_shows_what_is_published(published: Path) -> None:
    publish(published, "p1", range(3))
    with closing(open_store(Path("/proc/nothing/home"))) as opened:
        assert "cannot be written" in opened.notice
        assert count(opened) == 3
