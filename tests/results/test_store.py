"""The store: everything the folders say and nothing twice, whatever happens to the file."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import duckdb
import pytest

from results import ingest, journal, store
from results.journal import RunFolder
from results.lines import line_of, parse_line
from results.records import (
    CASE_FIELDS,
    Case,
    Measurement,
    RecordError,
    Run,
    Status,
    attention_case,
    measurement_to_json,
)
from results.store import Store, StoreError, open_store, rebuild

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
FULL = Measurement(
    "r1",
    CASE,
    "torch_naive",
    "latency_ms",
    Status.OK,
    mode="fwd",
    timing="kernel",
    value=0.1 + 0.2,
    statistic="median",
    mean=1e-7,
    std=0.0,
    p20=1.0,
    p80=2.5,
    ci_low=-1.5,
    ci_high=123456.789,
    n=3,
    samples=(1.0, 0.1, 3e-5),
    note='back\\slash, "quote", é, 😀,\nnew line',
    flags=("throttled", "retried"),
    printed="0.30",
    origin="Table 1 × é 😀",
    time="2026-11-21T08:30:00+02:00",
    round_sizes=(2, 1),
    sm_clock_mhz=1980.0,
    config="forward 128x64",
)


def latency(number: int, run_id: str = "r1", **changes) -> Measurement:
    return replace(FULL, run_id=run_id, origin=str(number), value=1.0 + number, **changes)


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "published")
    return tmp_path / "published"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(home: Path) -> RunFolder:
    return RunFolder.create(home, Run("r1", "local", created="2026-11-21T08:00:00Z", gpu_name="H200"))


@pytest.fixture
def opened(home: Path, folder: RunFolder):
    with closing(open_store(home)) as opened:
        yield opened


def count(opened: Store, table: str = "measurements") -> int:
    return opened.rows(f"SELECT count(*) FROM {table}")[0][0]


def publish(published: Path, run_id: str, numbers: range) -> RunFolder:
    made = RunFolder.create(published.parent / "x", Run(run_id, "published"), [latency(n, run_id) for n in numbers])
    (published / run_id).parent.mkdir(exist_ok=True)
    return RunFolder(made.path.rename(published / run_id))


def in_python(code: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=journal.REPOSITORY, stdout=subprocess.PIPE, text=True, **options
    )


def test_every_field_of_a_record_has_its_column(opened: Store) -> None:
    columns = {table: set() for table in ("measurements", "runs")}
    for table, column in opened.rows("SELECT table_name, column_name FROM duckdb_columns()"):
        columns.get(table, set()).add(column)
    expected = {f.name for f in fields(Measurement)} - {"case"} | {*CASE_FIELDS, "measurement_id", "time_text"}
    assert columns["measurements"] == expected
    assert columns["runs"] == {f.name for f in fields(Run)} | {"created_text"}


def test_a_measurement_is_stored_to_the_last_digit(opened: Store, folder: RunFolder) -> None:
    folder.append(FULL)
    assert opened.refresh() == 1
    names = [f.name for f in fields(Measurement) if f.name not in ("case", "time")]
    row = opened.rows(f"SELECT {', '.join([*names, *CASE_FIELDS])} FROM measurements")[0]
    stored = dict(zip([*names, *CASE_FIELDS], row, strict=True))
    case = Case(**{name: stored.pop(name) for name in CASE_FIELDS})
    stored |= {name: tuple(stored[name]) for name in ("samples", "flags", "round_sizes")}
    assert Measurement(case=case, time=FULL.time, **stored) == FULL
    assert opened.rows("SELECT time::VARCHAR, time_text FROM measurements") == [("2026-11-21 06:30:00", FULL.time)]


def test_a_journal_from_before_a_field_was_added_reads_the_same(opened: Store, folder: RunFolder) -> None:
    later = ("round_sizes", "sm_clock_mhz", "config", "inputs")
    plain = latency(1, round_sizes=(), sm_clock_mhz=None, config=None)
    old = {name: value for name, value in measurement_to_json(plain).items() if name not in later}
    folder.journal_path.write_text(json.dumps(old, separators=(",", ":")) + "\n")
    with patch.object(ingest, "_mend", side_effect=AssertionError("the line took the slow way")):
        assert (opened.refresh(), opened.problems) == (1, [])
    assert opened.rows("SELECT measurement_id, round_sizes, sm_clock_mhz, config, inputs FROM results") == [
        (plain.measurement_id, [], None, None, None)
    ]


@pytest.mark.parametrize("inputs", [None, "normal", "outliers"])
def test_the_store_knows_the_id_of_a_line_whatever_its_inputs(opened: Store, folder: RunFolder, inputs) -> None:
    folder.append(latency(1, case=replace(CASE, inputs=inputs)))
    with patch.object(ingest, "_mend", side_effect=AssertionError("the line took the slow way")):
        assert (opened.refresh(), opened.problems) == (1, [])


def test_random_numbers_survive_the_way_through_json(opened: Store, folder: RunFolder) -> None:
    dice = random.Random(1)
    values = [dice.random() * 10.0 ** dice.randint(-40, 40) for _ in range(500)]
    for number, value in enumerate(values):
        with open(folder.journal_path, "a") as file:
            file.write(line_of(replace(latency(number), value=value)))
    opened.refresh()
    assert [v for (v,) in opened.rows("SELECT value FROM measurements ORDER BY rowid")] == values


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


def test_a_malformed_line_is_a_problem_with_its_number_and_the_others_are_taken(
    opened: Store, folder: RunFolder, home: Path
) -> None:
    folder.append(latency(1))
    with open(folder.journal_path, "ab") as file:
        file.write(b'{"run_id": "r1", "va\n\n\xff\xfe\n')
    folder.append(latency(2))
    opened.refresh()
    assert count(opened) == 2
    assert [(run_id, line) for run_id, line, _ in opened.problems] == [("r1", 2), ("r1", 4)]
    opened.close()
    with closing(open_store(home)) as again:
        assert len(again.problems) == 2
        folder.journal_path.write_text(line_of(latency(1)))
        again.refresh()
        assert (count(again), again.problems) == (1, [])


def _spoiled(dice: random.Random) -> bytes:
    """A line with one thing changed, as a hand, a disk or an older version might."""
    record = json.loads(line_of(latency(dice.randrange(10**6))))
    name = dice.choice(list(record))
    values = [
        None,
        1,
        -1,
        0,
        1.5,
        "",
        "x",
        "ok",
        "oom",
        True,
        [],
        [1],
        ["a"],
        {},
        10**12,
        "float16",
        "1e5",
        float("nan"),
    ]
    kind = dice.randrange(5)
    if kind == 0:
        del record[name]
    elif kind == 1:
        record[name] = dice.choice(values)
    elif kind == 2:
        record["extra"] = 1
    elif kind == 3:
        record = dict(sorted(record.items()))
        record[name] = dice.choice(values)
    line = bytearray(json.dumps(record, separators=(",", ":")).encode())
    if kind == 4:
        line[dice.randrange(len(line))] = dice.randrange(256)
    return bytes(line).replace(b"\n", b" ")


def test_the_fast_way_takes_no_line_that_the_records_refuse_and_loses_none(opened: Store, folder: RunFolder) -> None:
    dice = random.Random(7)
    lines = [_spoiled(dice) for _ in range(3000)]
    folder.journal_path.write_bytes(b"".join(line + b"\n" for line in lines))
    opened.refresh()
    problems = {number for _, number, _ in opened.problems}
    refused, ids = set(), set()
    for number, line in enumerate(lines, 1):
        try:
            measurement = parse_line(line)
        except RecordError:
            refused.add(number)
            continue
        if number not in problems:
            ids.add(measurement.measurement_id)
            assert measurement.run_id == "r1"
    assert len(refused) > 500
    assert refused <= problems
    assert len(problems - refused) < 400  # types that the records do not check, such as a number for a note
    assert count(opened) > 500
    stored = opened.rows("SELECT measurement_id FROM measurements")
    assert len(stored) == len(set(stored))
    assert len(stored) == len(ids)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"note": 5}, "note is 5"),
        ({"batch": 10**10}, "batch is 10000000000"),
        ({"samples": [1, "a"]}, "samples is"),
        ({"samples": [float("nan")]}, "not finite"),
        ({"value": 10**400}, "out of range"),
        ({"run_id": "r2"}, "of run 'r2'"),
        ({"num_kv_heads": 3}, "multiple of num_kv_heads"),
        ({"status": "oom"}, "only ok has numbers"),
        ({"note": "\ud800"}, "UTF-8"),
    ],
)
def test_a_line_that_is_json_and_still_no_measurement_says_why(
    opened: Store, folder: RunFolder, changes: dict, reason: str
) -> None:
    folder.journal_path.write_text(json.dumps(json.loads(line_of(FULL)) | changes) + "\n")
    assert opened.refresh() == 0
    assert [reason in text for _, _, text in opened.problems] == [True], opened.problems


def test_a_line_written_by_another_hand_is_taken_if_it_says_the_same(opened: Store, folder: RunFolder) -> None:
    record = json.loads(line_of(FULL))
    del record["measurement_id"], record["flags"], record["baseline"]
    folder.journal_path.write_text(json.dumps(dict(sorted(record.items()))) + "\r\n")
    opened.refresh()
    assert opened.rows("SELECT measurement_id, flags FROM measurements") == [(FULL.measurement_id, [])]


def test_a_number_that_comes_again_is_there_once_and_the_first_stays(opened: Store, folder: RunFolder) -> None:
    folder.append(latency(1, note="first"))
    folder.append(latency(1, note="second"))
    assert opened.refresh() == 1
    version = opened.version()
    folder.append(latency(1, note="third"))
    assert (opened.refresh(), opened.version()) == (0, version)
    assert opened.rows("SELECT note FROM measurements") == [("first",)]


def test_a_line_copied_by_hand_gets_the_id_that_belongs_to_it(opened: Store, folder: RunFolder) -> None:
    line = line_of(FULL)
    edited = line.replace('"seqlen_q":128', '"seqlen_q":256')
    folder.journal_path.write_text(edited + line + edited)
    assert opened.refresh() == 2
    other = replace(FULL, case=replace(CASE, seqlen_q=256))
    assert opened.rows("SELECT seqlen_q, measurement_id FROM measurements ORDER BY 1") == [
        (128, FULL.measurement_id),
        (256, other.measurement_id),
    ]


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
def test_a_run_whose_record_cannot_be_used_is_a_problem_until_it_can(
    opened: Store, folder: RunFolder, text: str
) -> None:
    good = folder.run_path.read_text()
    folder.append(latency(1))
    folder.run_path.write_text(text)
    opened.refresh()
    assert (count(opened, "runs"), [line for _, line, _ in opened.problems]) == (0, [0])
    folder.run_path.write_text(good)
    opened.refresh()
    assert (count(opened, "results"), opened.problems) == (1, [])


def test_a_fact_of_a_run_in_the_wrong_type_is_left_out_and_told(opened: Store, folder: RunFolder) -> None:
    folder.run_path.write_text(
        json.dumps(json.loads(folder.run_path.read_text()) | {"sm_count": "many", "seed": 2**40})
    )
    opened.refresh()
    assert opened.rows("SELECT sm_count, seed, gpu_name FROM runs") == [(None, 2**40, "H200")]
    assert "sm_count is 'many'" in opened.problems[0][2]


HOLD = """
import sys; from pathlib import Path; from results.store import open_store
held = open_store(Path(sys.argv[1]))
print(held.notice, flush=True)
sys.stdin.read()
"""


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
    code = """
import os, sys; from pathlib import Path; from results import journal; from results.store import open_store
journal.PUBLISHED = Path("none")
held = open_store(Path(sys.argv[1]).parent); os._exit(0)
"""
    in_python(code, str(path)).communicate()
    log = path.with_name("store.duckdb.wal")
    data = log.read_bytes()
    _flip(log, data.index(b"measurements") / len(data))  # a name: of a wrong length DuckDB takes the rest for torn


DAMAGE = {
    "garbage": lambda path: path.write_bytes(b"garbage" * 1000),
    "empty": lambda path: path.write_bytes(b"\0" * 4096),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 3]),
    "header": lambda path: _flip(path, 0.0001),
    "a byte of the log": _crash_with_a_log,
    "a folder in its place": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_loses_nothing_and_the_notice_says_how_to_mend_it(
    home: Path, folder: RunFolder, damage: str
) -> None:
    folder.append(latency(1))
    if damage != "a byte of the log":
        open_store(home).close()
        assert (home / "store.duckdb").is_file()
    DAMAGE[damage](home / "store.duckdb")
    with closing(open_store(home)) as opened:
        assert "python -m results rebuild" in opened.notice
        assert count(opened, "results") == 1
        assert opened.path is None
        folder.append(latency(2))
        assert opened.refresh() == 1
    if damage != "a folder in its place":
        assert rebuild(home) == 2
        with closing(open_store(home)) as opened:
            assert (opened.notice, count(opened)) == (None, 2)


def test_damage_that_shows_only_in_a_query_is_answered_from_memory(home: Path, folder: RunFolder) -> None:
    with open(folder.journal_path, "w") as file:
        file.writelines(line_of(latency(number)) for number in range(2000))
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
                (2000, sum(range(1, 2001)), FULL.note)
            ]
            found += late and opened.notice is not None
    assert found, "no block was found whose damage shows late"


def test_a_file_of_another_version_is_made_anew(home: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.append(latency(1))
    with monkeypatch.context() as older:
        older.setattr(store, "LAYOUT", "older")
        older.setattr(store, "SCHEMA", store.SCHEMA + "CREATE TABLE gone_since (a BIGINT);")
        open_store(home).close()
    for _ in range(2):
        with closing(open_store(home)) as opened:
            assert (opened.notice, count(opened)) == (None, 1)
            assert opened.rows("SELECT layout FROM store") == [(store.LAYOUT,)]
            assert opened.rows("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'gone_since'") == [(0,)]


def test_a_database_of_another_program_is_not_touched(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    with closing(duckdb.connect(str(home / "store.duckdb"))) as foreign:
        foreign.execute("CREATE TABLE theirs AS SELECT 42 AS answer")
    with closing(open_store(home)) as opened:
        assert "another program's database" in opened.notice
        assert count(opened) == 1
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


def test_a_home_that_cannot_be_made_still_shows_what_is_published(published: Path) -> None:
    publish(published, "p1", range(3))
    with closing(open_store(Path("/proc/nothing/home"))) as opened:
        assert "cannot be written" in opened.notice
        assert count(opened) == 3


def test_two_stores_of_one_process_agree(home: Path, folder: RunFolder) -> None:
    with closing(open_store(home)) as first, closing(open_store(home)) as second:
        for number in range(20):
            folder.append(latency(number))
            new = [0, 0]
            threads = [
                threading.Thread(target=lambda at=at, one=one, new=new: new.__setitem__(at, one.refresh()))
                for at, one in enumerate((first, second))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(new) == 1
        assert (count(first), count(second), first.notice, second.notice) == (20, 20, None, None)
        assert first.version() == second.version()
        with pytest.raises(StoreError, match="close the store first"):
            rebuild(home)


def test_eight_threads_ask_while_one_refreshes_and_every_answer_is_right(opened: Store, folder: RunFolder) -> None:
    stop, wrong, answers = threading.Event(), [], []

    def ask() -> None:
        last = 0
        while not stop.is_set():
            found = opened.query("SELECT count(*) AS n, sum(value) AS total, max(value) AS top FROM results").iloc[0]
            n = int(found.n)
            if n < last or (n and (found.total != n * (n + 1) / 2 or found.top != n)):
                wrong.append(tuple(found))
            last = n
            answers.append(n)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(10):
        folder.append(latency(number))
        opened.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(answers) > 25
    assert count(opened) == 10


def test_threads_that_meet_a_damaged_file_all_get_the_right_answer(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    opened = open_store(home)
    answers = []

    def ask() -> None:
        answers.append(opened.rows("SELECT count(*) FROM results"))

    real = opened._connection

    class Broken:
        """A connection whose every cursor finds the file damaged."""

        def cursor(self):
            raise duckdb.IOException("Corrupt database file: computed checksum")

        def close(self):
            real.close()

    opened._connection = Broken()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[(1,)]] * 8
    assert "it is damaged" in opened.notice
    folder.append(latency(2))
    assert (opened.refresh(), count(opened)) == (1, 2)
    opened.close()
    assert rebuild(home) == 2


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


def test_looking_for_news_among_fifty_runs_costs_two_stats_a_run(
    opened: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        RunFolder.create(home, Run(f"run{number}", "local"), [latency(1, f"run{number}")])
    assert opened.refresh() == 50
    monkeypatch.setattr(RunFolder, "lines", None)
    monkeypatch.setattr(RunFolder, "run", None)
    assert opened.refresh() == 0


def test_a_store_that_is_closed_says_so_and_can_be_closed_again(home: Path, folder: RunFolder) -> None:
    opened = open_store(home)
    opened.close()
    opened.close()
    with pytest.raises(StoreError, match="closed"):
        opened.refresh()
    assert rebuild(home) == 0
