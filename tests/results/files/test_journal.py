"""The run folder: nothing acknowledged is lost, nothing is read before it is whole, and liveness is a lock."""

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from results.files import journal
from results.files.journal import JournalError, RunBusy, RunFolder, State, line_of, parse_line
from results.records import Case, Measurement, RecordError, Run, Status, attention_case
from tests.cases import cases
from tests.results.store.conftest import in_python

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)


def latency(value: float, *, run_id: str = "r1", origin: str | None = None, **changes) -> Measurement:
    return Measurement(run_id, CASE, "torch_naive", "latency_ms", Status.OK, value=value, origin=origin, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, Run("r1", "local", created="2026-11-21T08:00:00+00:00"))


def test_what_is_appended_is_read_back_equal(folder: RunFolder) -> None:
    written = [
        latency(1.5, mode="fwd", timing="eager", samples=(1.4, 1.5, 1.6), flags=("throttled",), n=3),
        Measurement("r1", Case(), "triton_fa2", "latency_ms", Status.OOM, note="needs 9 GiB, 8 GiB are there"),
    ]
    for measurement in written:
        folder.append(measurement)
    assert folder.read()[0] == written
    assert folder.measurement_ids() == {m.measurement_id for m in written}


def test_reading_goes_on_from_the_offset(folder: RunFolder) -> None:
    folder.append(latency(1.0, origin="a"))
    _, offset, _ = folder.read()
    folder.append(latency(2.0, origin="b"))
    measurements, end, problems = folder.read(offset)
    assert ([m.value for m in measurements], end, problems) == ([2.0], folder.journal_path.stat().st_size, [])


def test_a_torn_last_line_is_left_until_it_is_complete(folder: RunFolder) -> None:
    folder.append(latency(1.0))
    whole = folder.journal_path.read_bytes()
    folder.journal_path.write_bytes(whole + whole[:100])
    measurements, offset, problems = folder.read()
    assert (len(measurements), offset, problems) == (1, len(whole), [])


def test_appending_after_a_torn_line_ends_it_first_so_that_only_it_is_lost(folder: RunFolder) -> None:
    folder.append(latency(1.0, origin="a"))
    with open(folder.journal_path, "ab") as file:
        file.write(b'{"run_id": "r1", "va')
    folder.append(latency(2.0, origin="b"))
    measurements, _, problems = folder.read()
    assert [m.value for m in measurements] == [1.0, 2.0]
    assert len(problems) == 1
    assert problems[0][0] == 2


def test_a_line_of_another_run_is_a_problem_and_no_number_of_this_one(folder: RunFolder) -> None:
    folder.journal_path.write_text(line_of(latency(2.0, run_id="elsewhere")) + line_of(latency(1.0)))
    found, _, problems = folder.read()
    assert found == [latency(1.0)]
    assert problems == [(1, "It is of run 'elsewhere', not of 'r1', in whose folder it is.")]


def test_a_damaged_journal_is_told_in_few_sentences() -> None:
    torn = [(line, "It is not UTF-8.") for line in range(3, 700)]
    each = [(line, f"Not a complete JSON line: {line}.") for line in range(700, 750)]
    said = journal.problem_words([(0, "No record."), *torn, *each])
    assert said[:3] == [
        "No record.",
        "697 lines, 3 to 699: It is not UTF-8.",
        "line 700: Not a complete JSON line: 700.",
    ]
    assert said[-1] == "42 more lines cannot be read."


def test_lines_come_in_pieces_of_about_the_limit_and_never_less_than_one(folder: RunFolder) -> None:
    for number in range(5):
        folder.append(latency(1.0 + number))
    whole = folder.journal_path.read_bytes()
    pieces, offset = [], 0
    while offset < len(whole):
        piece, offset = folder.lines(offset, limit=10)
        pieces.append(piece)
    assert b"".join(pieces) == whole
    assert len(pieces) == 5


def test_a_run_appears_with_all_its_measurements_or_not_at_all(tmp_path: Path) -> None:
    def broken():
        yield latency(1.0)
        raise RecordError("row 2 is wrong")

    with pytest.raises(RecordError):
        RunFolder.create(tmp_path, Run("r1", "upload"), broken())
    assert journal.run_folders(tmp_path) == []
    folder = RunFolder.create(tmp_path, Run("r1", "upload"), [latency(1.0), latency(2.0, origin="b")])
    assert len(folder.read()[0]) == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["r1"]


def test_a_second_run_of_the_same_id_is_refused_and_one_that_lost_its_record_says_where_its_numbers_are(
    folder: RunFolder, tmp_path: Path
) -> None:
    folder.append(latency(1.0))
    with pytest.raises(JournalError, match="exists"):
        RunFolder.create(tmp_path, Run("r1", "upload"))
    assert folder.run().source == "local"
    assert len(folder.read()[0]) == 1
    folder.run_path.unlink()
    with pytest.raises(JournalError, match="has lost its record.* Its numbers are in .*measurements.jsonl"):
        RunFolder.open(tmp_path, "r1")


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for run_id, created in (("a", "2026-01-02"), ("b", "2026-01-03"), ("c", "2026-01-01")):
        RunFolder.create(tmp_path, Run(run_id, "local", created=created))
    assert [folder.run_id for folder in journal.run_folders(tmp_path)] == ["b", "a", "c"]
    assert journal.run_folders(tmp_path / "nowhere") == []


@pytest.mark.parametrize("run_id", ["absent", "../runs/r1", ""])
def test_a_run_that_is_not_there_cannot_be_opened(folder: RunFolder, tmp_path: Path, run_id: str) -> None:
    with pytest.raises(JournalError, match="no run"):
        RunFolder.open(tmp_path, run_id)
    assert RunFolder.open(tmp_path, "r1").run() == folder.run()


_OF_R1 = '{"run_id": "r1", "source": "local", %s}'
_WRONG = ('"x": 1', '"created": "yesterday"', '"title": 5', '"gpu_memory_mb": "x"', '"sweep": []', '"cards": {"a": 5}')


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"run_id": "r2", "source": "local"}', *(_OF_R1 % wrong for wrong in _WRONG)]
)
def test_a_run_record_that_cannot_be_used_says_so(folder: RunFolder, text: str) -> None:
    folder.run_path.write_text(text)
    with pytest.raises(JournalError, match=r"run\.json"):
        folder.run()


def test_a_state_is_read_back_and_never_seen_half_written(folder: RunFolder) -> None:
    assert folder.read_state() is None
    state = State("running", done=3, total=10, current="torch_naive fwd", eta_s=1.5)
    folder.write_state(state)
    assert folder.read_state() == state
    assert sorted(p.name for p in folder.path.iterdir()) == ["measurements.jsonl", "run.json", "state.json"]
    (folder.path / "state.json").write_text('{"state": "runn')
    assert folder.read_state() is None


def test_a_run_is_alive_while_its_lock_is_held_and_crashed_when_it_was_killed(folder, tmp_path) -> None:
    code = """
import sys; from pathlib import Path; from results.files.journal import RunFolder, State
folder = RunFolder(Path(sys.argv[1]))
with folder.lock():
    folder.write_state(State("running"))
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = in_python(code, str(folder.path), stdin=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "held\n"
        assert folder.is_alive()
        assert folder.condition() == "running"
        with pytest.raises(RunBusy, match="another process"), folder.lock():
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert not folder.is_alive()
    assert folder.condition() == "crashed"
    with folder.lock():
        assert folder.is_alive()


@pytest.mark.parametrize("state", ["finished", "cancelled", "failed"])
def test_an_ended_run_is_in_the_condition_it_ended_in(folder: RunFolder, state: str) -> None:
    folder.write_state(State(state))
    assert folder.condition() == state


def test_a_run_without_a_state_is_finished_if_it_came_whole_and_crashed_if_it_was_ours(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, Run("u", "upload")).condition() == "finished"
    assert RunFolder.create(tmp_path, Run("l", "local")).condition() == "crashed"


def test_a_line_that_does_not_fit_on_the_disk_leaves_the_journal_as_it_was(folder: RunFolder) -> None:
    code = """
import resource, signal, sys; from pathlib import Path
from results.files.journal import JournalError, RunFolder
from results.records import Case, Measurement
folder = RunFolder(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for number in range(100):
    try:
        folder.append(Measurement("r1", Case(), "x", "latency_ms", "ok", value=1.0, origin=str(number)))
    except JournalError as error:
        print(number, error)
        break
"""
    answer, _ = in_python(code, str(folder.path)).communicate()
    acknowledged, message = answer.split(" ", 1)
    assert "file size limit" in message
    assert int(acknowledged) >= 1
    assert len(folder.read()[0]) == int(acknowledged)
    assert folder.journal_path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only"), (errno.EIO, "input/output")],
)
def test_a_failing_disk_is_told_in_a_sentence_and_leaves_no_half_line(folder, monkeypatch, number, sentence) -> None:
    folder.append(latency(1.0))
    before = folder.journal_path.read_bytes()

    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(JournalError, match=sentence):
        folder.append(latency(2.0, origin="b"))
    assert folder.journal_path.read_bytes() == before


def test_a_sample_that_is_not_finite_makes_no_line(folder: RunFolder) -> None:
    with pytest.raises(RecordError, match="samples hold nan"):
        folder.append(latency(1.0, samples=(1.0, float("nan"))))
    assert folder.journal_path.read_bytes() == b""
    with pytest.raises(RecordError, match="odd of torch_naive has a sample that is not finite"):
        line_of(replace(latency(1.0), metric="odd", samples=(1.0, float("inf"))))


def test_a_folder_that_cannot_be_written_is_told_in_a_sentence() -> None:
    with pytest.raises(JournalError, match="Cannot"):
        RunFolder.create(Path("/proc/nothing"), Run("r1", "local"))
    with pytest.raises(JournalError, match="Cannot"):
        RunFolder(Path("/proc/nothing")).append(latency(1.0))


def test_the_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    assert journal.home() == tmp_path
    monkeypatch.delenv("ATTNBENCH_HOME")
    assert journal.home() == journal.REPOSITORY / "results"


def test_the_journal_needs_only_the_standard_library() -> None:
    code = "import results.files.journal, sys; print({'pandas', 'duckdb', 'numpy', 'torch'} & set(sys.modules))"
    answer, _ = in_python(code).communicate()
    assert answer.strip() == "set()"


@pytest.mark.parametrize(("line", "reason"), cases(__file__, "test_a_malformed_line_says_what_is_wrong"))
def test_a_malformed_line_says_what_is_wrong(line: str, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        parse_line(line.encode("latin-1"))
