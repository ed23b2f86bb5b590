"""Compressed columns in place of a journal: the same measurements for every reader."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from results.files import columns, journal, library
from results.files.columns import ColumnsError
from results.files.journal import JournalError, RunFolder, line_of
from results.formats import UploadError, understand
from results.formats.archives import bundled
from results.records import Measurement, Run, Status, attention_case
from results.store.database import Store
from tests.cases import cases

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
SAMPLES = (0.1, 1 / 3, 2.2250738585072014e-98, 1.7976931348623157e8)
ROWS = [
    Measurement("r", CASE, "torch_naive", "latency_ms", Status.OK, mode="fwd", value=1 / 3, samples=SAMPLES, n=4),
    Measurement(
        "r", CASE, "triton_fa2", "latency_ms", Status.OOM, mode="fwd", note='ä "quoted"\nline', flags=("a", "b")
    ),
    Measurement(
        "r", CASE, "triton_fa2", "error_out", Status.OK, value=0.0, round_sizes=(), time="2026-11-23T00:00:00Z"
    ),
]


@pytest.fixture
def store(opened: Callable[[], Store]) -> Store:
    return opened()


def _compressed(path: Path, rows: list[Measurement] = ROWS) -> RunFolder:
    folder = RunFolder(path / "r")
    folder.path.mkdir(parents=True)
    folder.write_run(Run(run_id="r", source="local"))
    folder.write_columns(rows)
    return folder


def _altered(folder: RunFolder, change: str) -> None:
    whole = columns.quoted(folder.columns_path)
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE rows AS FROM read_parquet({whole})")
        connection.execute(change)
        connection.execute(f"COPY rows TO {whole} (FORMAT parquet)")


def test_every_field_comes_back_and_each_number_to_the_last_bit(tmp_path: Path) -> None:
    folder = _compressed(tmp_path)
    measurements, _, problems = folder.read()
    assert (measurements, problems) == (ROWS, [])
    assert list(map(line_of, measurements)) == list(map(line_of, ROWS))
    with pytest.raises(JournalError, match="finished and compressed"):
        folder.append(ROWS[0])


@pytest.mark.parametrize("place", ["none", "runs"])
def test_the_store_has_the_rows_of_a_compressed_run(home: Path, store: Store, place: str) -> None:
    folder = _compressed(home / place)
    assert (store.refresh(), store.refresh(), store.problems) == (3, 0, [])
    assert store.rows("SELECT value, samples FROM measurements WHERE samples <> []") == [(1 / 3, list(SAMPLES))]
    folder.write_columns(ROWS[:1])
    store.refresh()
    assert store.rows("SELECT implementation FROM measurements") == [("torch_naive",)]


@pytest.mark.parametrize(
    ("change", "reason"), cases(__file__, "test_a_row_that_breaks_a_rule_is_a_problem_and_the_others_are_taken")
)
def test_a_row_that_breaks_a_rule_is_a_problem_and_the_others_are_taken(store: Store, change: str, reason: str) -> None:
    _altered(_compressed(journal.PUBLISHED), change)
    store.refresh()
    ((run_id, line, said),) = store.problems
    assert run_id == "r" and line > 0 and reason in said
    assert store.rows("SELECT count(*) FROM measurements") == [(2,)]


def test_a_repeated_row_is_stored_once(store: Store) -> None:
    _compressed(journal.PUBLISHED, [*ROWS, ROWS[0]])
    assert store.refresh() == 3


def test_columns_of_another_layout_or_no_columns_at_all_are_refused_in_words(store: Store) -> None:
    folder = _compressed(journal.PUBLISHED)
    _altered(folder, "ALTER TABLE rows DROP COLUMN metric")
    with pytest.raises(JournalError, match=r"cannot be read: Missing columns \['metric'\]"):
        folder.read()
    folder.columns_path.write_bytes(b"no columns")
    store.refresh()
    assert [(run, line) for run, line, _ in store.problems] == [("r", 0)]


def test_a_field_that_was_added_later_is_none_in_older_columns(tmp_path: Path) -> None:
    folder = _compressed(tmp_path)
    _altered(folder, "ALTER TABLE rows DROP COLUMN config")
    assert folder.read()[0] == ROWS
    _altered(folder, "ALTER TABLE rows ADD COLUMN surprise INTEGER")
    with pytest.raises(ColumnsError, match=r"\['surprise'\]"):
        list(columns.read(folder.columns_path))


def test_a_compressed_run_can_be_uploaded_as_archive_alone_and_as_files(tmp_path: Path) -> None:
    folder = _compressed(tmp_path)
    files = {path.name: path.read_bytes() for path in (folder.run_path, folder.columns_path)}
    packed = tmp_path / "r.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"r/{name}", data)
    (pair,) = bundled(list(files.items()))
    for name, data in (("r.zip", packed.read_bytes()), (columns.NAME, files[columns.NAME]), pair):
        found = understand(name, data).measurements
        assert [(m.measurement_id, m.samples) for m in found] == [(m.measurement_id, m.samples) for m in ROWS]
    with pytest.raises(UploadError, match="cannot be read"):
        understand(columns.NAME, b"PAR1 and nothing else")


def test_the_record_of_an_upload_with_too_many_rows_is_not_unpacked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("results.formats.archives.MAX_ROWS", 2)
    folder = _compressed(tmp_path)
    with pytest.raises(UploadError, match="holds 3 rows; at most 2"):
        understand(columns.NAME, folder.columns_path.read_bytes())


def test_a_key_for_caches_changes_with_the_columns(tmp_path: Path) -> None:
    folder = _compressed(tmp_path)
    before = library.stamp(folder)
    folder.write_columns(ROWS[:1])
    assert library.stamp(folder) != before


def test_every_shipped_run_is_compressed() -> None:
    for folder in journal.published_folders():
        assert folder.is_compressed, folder.run_id
        assert json.loads(folder.run_path.read_text())["run_id"] == folder.run_id
