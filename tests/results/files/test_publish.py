"""Runs that ship with the project: how one is published, and what is there."""

from functools import cache
from pathlib import Path

import duckdb
import pytest

from results import records
from results.__main__ import main
from results.files import columns
from results.files.journal import JournalError, RunFolder, State, published_folders
from results.files.library import publish
from results.records import CASE_FIELDS, Measurement, Run, Status, attention_case


def _run(home: Path, *, state: str = "finished", commit: str | None = None) -> RunFolder:
    case = attention_case(batch=1, num_heads=1, seqlen=128, head_dim=64, dtype="float16", causal=True)
    measurement = Measurement("a-run", case, "torch_naive", "latency_ms", Status.OK, mode="fwd", value=1.5)
    folder = RunFolder.create(home, Run(run_id="a-run", source="local", git_commit=commit), [measurement])
    folder.write_state(State(state, done=1, total=1))
    return folder


def test_a_published_run_has_the_same_numbers_and_says_what_it_is(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    shipped = publish(folder, git_commit="abc", target=tmp_path / "published")
    assert (shipped.read()[0], shipped.read()[2]) == (folder.read()[0], [])
    assert shipped.is_compressed and sorted(path.name for path in shipped.path.iterdir()) == [
        "measurements.parquet",
        "run.json",
        "state.json",
    ]
    assert (shipped.run().source, shipped.run().git_commit) == ("shipped", "abc")
    assert folder.run().source == "local"


def test_a_renamed_run_is_published_with_the_ids_of_its_name(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    folder_id = folder.read()[0][0].measurement_id
    renamed = RunFolder(tmp_path / "runs" / "renamed")
    folder.path.rename(renamed.path)
    for path in (renamed.run_path, renamed.journal_path):
        path.write_text(path.read_text().replace("a-run", "renamed"))
    shipped = publish(renamed, target=tmp_path / "published")
    (measurement,) = shipped.read()[0]
    (record,) = columns.read(shipped.columns_path)
    assert record["measurement_id"] == measurement.measurement_id != folder_id


@pytest.mark.parametrize("state", ["failed", "cancelled", "running"])
def test_a_run_that_was_cut_off_says_so(tmp_path: Path, state: str) -> None:
    folder = _run(tmp_path, state=state)
    shipped = publish(folder, target=tmp_path / "published")
    assert shipped.run().notes == f"Not a whole sweep: {folder.condition()} after 1 of 1 cells."
    assert shipped.condition() == folder.condition()


def test_a_run_that_still_runs_is_not_published(tmp_path: Path) -> None:
    folder = _run(tmp_path, state="running")
    with folder.lock(), pytest.raises(JournalError, match="only a local run that ended"):
        publish(folder, target=tmp_path / "published")


def test_a_commit_that_the_run_knows_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="measured at commit abc, not at def"):
        publish(_run(tmp_path, commit="abc"), git_commit="def", target=tmp_path / "published")


def test_what_ships_has_the_ids_that_follow_from_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fifth of the rows, and without the checks of a measurement: all of them take seconds."""
    monkeypatch.setattr(records, "case_to_json", cache(records.case_to_json))
    paths = [str(folder.columns_path) for folder in published_folders()]
    some = "read_parquet(?, union_by_name = true, file_row_number = true) WHERE file_row_number % 5 = 0"
    rows = duckdb.execute(f"SELECT * EXCLUDE (samples, file_row_number) FROM {some}", [paths])
    names = [name for name, *_ in rows.description]
    while read := rows.fetchmany(2000):
        for record in (dict(zip(names, row, strict=True)) for row in read):
            measurement = object.__new__(Measurement)
            vars(measurement).update(record, case=records._case(*map(record.get, CASE_FIELDS)))
            assert measurement.measurement_id == record["measurement_id"], record["run_id"]


def test_of_what_ships_reports_are_published_and_our_own_runs_are_not():
    sources = {folder.run().report is not None: set() for folder in published_folders()}
    for folder in published_folders():
        sources[folder.run().report is not None].add(folder.run().source)
    assert sources == {True: {"published"}, False: {"shipped"}}


def test_the_command_publishes_a_run_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    _run(tmp_path)
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(publish, "__kwdefaults__", {**publish.__kwdefaults__, "target": tmp_path / "published"})
    assert main(["publish", "a-run", "--git-commit", "abc"]) == 0
    shipped = RunFolder(tmp_path / "published" / "a-run").run()
    assert (shipped.source, shipped.git_commit) == ("shipped", "abc")
    assert main(["publish", "a-run"]) == 1
    assert "exists" in (said := capsys.readouterr().err) and "remove it first" in said
