"""Whatever happens to the store's file, the results are there and the notice says what to do."""

import os
import subprocess
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from results.files.journal import RunFolder, line_of
from results.records import Run
from results.store import database
from results.store.database import Store, StoreError, open_store, rebuild
from tests.results.store.conftest import FULL, count, in_python, latency

HOME = """
import os, sys; from pathlib import Path; from results.files import journal
from results.store.database import open_store
journal.PUBLISHED, home = Path("none"), Path(sys.argv[1])
"""
HOLD = f"{HOME}held = open_store(home); print(held.notice, flush=True); sys.stdin.read()"


def test_who_finds_the_file_in_use_has_the_same_results_in_memory(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    holder = in_python(HOLD, str(home), stdin=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "None\n"
        with closing(open_store(home)) as second:
            assert f"process {holder.pid} has" in second.notice
            folder.append(latency(2))
            assert (count(second), second.refresh(), count(second)) == (1, 1, 2)
        with pytest.raises(StoreError, match=f"Process {holder.pid} has"):
            rebuild(home)
    finally:
        holder.kill()
        holder.communicate()
    with closing(open_store(home)) as third:
        assert (third.notice, count(third)) == (None, 2)
    assert rebuild(home) == 2


def _flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 0xFF
    path.write_bytes(data)


def _crash_with_a_log(path: Path) -> None:
    """Leave rows in the write-ahead log only, as a killed process does; with all that ships it would be put away."""
    in_python(f"{HOME}held = open_store(home); os._exit(0)", str(path.parent)).communicate()
    log = path.with_name("store.duckdb.wal")
    data = log.read_bytes()
    _flip(log, data.index(b"measurements") / len(data))  # a name: of a wrong length DuckDB takes the rest for torn


DAMAGE = {
    "garbage": lambda path: path.write_bytes(b"garbage" * 1000),
    "empty": lambda path: path.write_bytes(b"\0" * 4096),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 3]),
    "header": lambda path: _flip(path, 0.0001),
    "a byte of the log": _crash_with_a_log,
    "0 bytes": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_moved_aside_and_made_anew(home: Path, folder: RunFolder, damage: str) -> None:
    folder.append(latency(1))
    if damage != "a byte of the log":
        open_store(home).close()
        assert (home / "store.duckdb").is_file()
    DAMAGE[damage](home / "store.duckdb")
    with closing(open_store(home)) as opened:
        assert "store.duckdb.damaged" in opened.mended
        assert opened.notice is None
        assert opened.path == (home / "store.duckdb").resolve()
        assert count(opened, "results") == 1
        folder.append(latency(2))
        assert opened.refresh() == 1
    assert (home / "store.duckdb.damaged").exists()
    assert not (home / "store.duckdb.wal").exists()
    with closing(open_store(home)) as opened:
        assert (opened.notice, opened.mended, count(opened)) == (None, None, 2)


def test_a_folder_in_the_place_of_the_file_loses_nothing_and_is_left_alone(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    (home / "store.duckdb").mkdir()
    with closing(open_store(home)) as opened:
        assert opened.path is None and opened.notice
        assert count(opened, "results") == 1
    assert (home / "store.duckdb").is_dir()


def test_eight_processes_that_find_a_file_of_0_bytes_all_have_the_results(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    (home / "store.duckdb").touch()
    code = """
wait, go = os.pipe()
for _ in range(8):  # forks of one process, which has imported for them all
    if not os.fork():
        os.close(go)
        os.read(wait, 1)  # until the parent has closed its end
        held = open_store(home)
        os.write(1, b"%d\\n" % held.rows("SELECT count(*) FROM measurements")[0][0])
        held.close()
        os._exit(0)
os.close(go)
for _ in range(8):
    os.wait()
"""
    assert in_python(HOME + code, str(home)).communicate()[0].split() == ["1"] * 8
    with closing(open_store(home)) as opened:
        assert (opened.notice, count(opened)) == (None, 1)


def test_damage_that_shows_only_in_a_query_is_answered_from_memory(home: Path, folder: RunFolder) -> None:
    with open(folder.journal_path, "w") as file:
        file.writelines(line_of(latency(number)) for number in range(600))
    open_store(home).close()
    path, found = home / "store.duckdb", 0
    whole = path.read_bytes()
    for block in range(3 * 4096 + 100, len(whole), 1 << 18):
        damaged = bytearray(whole)
        damaged[block] ^= 0xFF
        path.write_bytes(damaged)
        with closing(open_store(home)) as opened:
            late = opened.notice is None
            assert opened.rows("SELECT count(DISTINCT measurement_id), sum(value), max(note) FROM results") == [
                (600, sum(range(1, 601)), FULL.note)
            ]
            found += late and opened.notice is not None
    assert found, "no block was found whose damage shows late"


def test_a_file_of_another_version_is_made_anew(home: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.append(latency(1))
    with monkeypatch.context() as older:
        older.setattr(database, "LAYOUT", "older")
        older.setattr(database, "SCHEMA", database.SCHEMA + "CREATE TABLE gone_since (a BIGINT);")
        open_store(home).close()
    for _ in range(2):
        with closing(open_store(home)) as opened:
            assert (opened.notice, count(opened)) == (None, 1)
            assert opened.rows("SELECT layout FROM store") == [(database.LAYOUT,)]
            assert opened.rows("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'gone_since'") == [(0,)]


def test_a_database_of_another_program_is_not_touched(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    with closing(duckdb.connect(str(home / "store.duckdb"))) as foreign:
        foreign.execute("CREATE TABLE theirs AS SELECT 42 AS answer")
    with closing(open_store(home)) as opened:
        assert "another program's database" in opened.notice
        assert "move it away" in opened.notice and "rebuild" not in opened.notice
        assert count(opened) == 1
    with pytest.raises(StoreError, match="is not replaced, because it is another program's database; move it away"):
        rebuild(home)
    with closing(duckdb.connect(str(home / "store.duckdb"))) as foreign:
        assert foreign.execute("SELECT answer FROM theirs").fetchall() == [(42,)]


def _mounted(path: Path, *options: str) -> None:
    path.mkdir(exist_ok=True)
    answer = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(path)], capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"cannot mount a file system here: {answer.stderr.strip()}")


def _fill(path: Path) -> None:
    left = os.statvfs(path)
    (path / "filler").write_bytes(b"\0" * (left.f_bavail * left.f_frsize - 8192))


@pytest.fixture
def mounted(home: Path):
    yield home
    subprocess.run(["umount", "-l", str(home)], capture_output=True)


def test_a_read_only_home_is_read_into_memory(mounted: Path) -> None:
    _mounted(mounted)
    RunFolder.create(mounted, Run("r1", "local"), [latency(1)])
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with closing(open_store(mounted)) as opened:
        assert "cannot be written" in opened.notice
        assert count(opened) == 1
    with pytest.raises(StoreError, match="cannot be written|cannot be replaced"):
        rebuild(mounted)


def test_a_full_disk_is_worked_around_in_memory(mounted: Path) -> None:
    _mounted(mounted, "-o", "size=3m")
    RunFolder.create(mounted, Run("r1", "local"), [latency(number) for number in range(100)])
    _fill(mounted)
    with closing(open_store(mounted)) as opened:
        assert "no space" in opened.notice
        assert count(opened) == 100


def test_a_disk_that_fills_later_is_left_for_memory(mounted: Path) -> None:
    _mounted(mounted, "-o", "size=6m")
    folder = RunFolder.create(mounted, Run("r1", "local"), [latency(0)])
    with closing(open_store(mounted)) as opened:
        assert opened.notice is None
        with open(folder.journal_path, "a") as file:
            file.writelines(line_of(latency(number)) for number in range(1, 1000))
        _fill(mounted)
        opened.refresh()
        assert "no space" in opened.notice
        assert count(opened) == 1000


def test_a_query_reaches_nothing_but_the_results(opened: Store, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"COPY runs TO '{tmp_path}/out.csv'",
        "SET enable_external_access = true",
    ):
        with pytest.raises(duckdb.Error):
            opened.query(sql)
    assert opened.query("SELECT run_id FROM runs WHERE run_id = ?", ["r1"]).run_id.tolist() == ["r1"]
    assert opened.notice is None


def test_a_store_that_is_closed_says_so_and_can_be_closed_again(home: Path, folder: RunFolder) -> None:
    opened = open_store(home)
    opened.close()
    opened.close()
    with pytest.raises(StoreError, match="closed"):
        opened.refresh()
    assert rebuild(home) == 0
