"""Journals and archives of run folders are read as they were written, also those from strangers.

Files of run folders that were dragged in one by one.
"""

import io
import json
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from results.files.journal import RunFolder, line_of
from results.formats import UploadError, archives, understand
from results.formats.archives import bundled
from results.records import Measurement, Run, Status, attention_case, run_to_json
from tests.builders import ids_of, import_understanding, random_runs
from tests.results.formats.mutants import tarred, zipped

gzipped = partial(tarred, mode="w:gz")


def _journal(runs: list[tuple[Run, list[Measurement]]]) -> dict[str, bytes]:
    files = {}
    for run, measurements in runs:
        files[f"runs/{run.run_id}/run.json"] = json.dumps(run_to_json(run)).encode()
        files[f"runs/{run.run_id}/measurements.jsonl"] = "".join(map(line_of, measurements)).encode()
        files[f"runs/{run.run_id}/log.txt"] = b"not wanted"
    return files


@pytest.mark.parametrize(("filename", "pack"), [("runs.zip", zipped), ("runs.tar.gz", gzipped), ("runs.tar", tarred)])
def test_an_archive_of_run_folders_is_carried_over(tmp_path: Path, filename: str, pack) -> None:
    runs = random_runs(3, count=2)
    data = pack(_journal(runs))
    found = understand(filename, data)
    assert found.format == "run_folder" and found.rejected == ()
    assert import_understanding(tmp_path, found) == list(ids_of(runs))
    for run, measurements in runs:
        folder = RunFolder.open(tmp_path, run.run_id)
        assert folder.run() == replace(run, source="upload") and folder.read()[0] == measurements
        assert sorted(path.name for path in folder.path.iterdir()) == [
            "measurements.jsonl",
            f"original{filename.removeprefix('runs')}",
            "run.json",
        ]
    assert import_understanding(tmp_path, understand(filename, data)) == []


def test_a_journal_alone_is_taken_and_the_gpu_is_asked_for(tmp_path: Path) -> None:
    ((run, measurements),) = random_runs(4, count=1)
    found = understand("measurements.jsonl", "".join(map(line_of, measurements)).encode())
    assert found.runs[0].gpu_name is None and "Which GPU was it?" in found.questions[0]
    (run_id,) = import_understanding(tmp_path, found, gpu_name="NVIDIA L4")
    assert run_id == run.run_id and RunFolder.open(tmp_path, run_id).run().gpu_name == "NVIDIA L4"


def test_a_last_line_that_was_cut_is_left_out_and_said() -> None:
    ((_, measurements),) = random_runs(4, count=1)
    data = "".join(map(line_of, measurements)).encode()
    found = understand("measurements.jsonl", data[:-10])
    assert len(found.measurements) == len(measurements) - 1 and found.rejected == ()
    assert found.assumptions == ("The last line of measurements.jsonl is cut off and left out.",)


def test_a_bad_line_within_a_journal_is_rejected_with_its_number() -> None:
    ((_, measurements),) = random_runs(5, count=1)
    lines = [line_of(measurement) for measurement in measurements[:3]]
    stranger = line_of(replace(measurements[4], run_id="other"))
    unsound = json.dumps(json.loads(lines[0]) | {"implementation": 5}) + "\n"
    text = "".join([*lines, "{broken\n", stranger, lines[0], unsound, '{"value": NaN}\n'])
    found = understand("measurements.jsonl", text.encode())
    reasons = [(rejection.line, rejection.reason.partition(":")[0]) for rejection in found.rejected]
    assert reasons == [
        (4, "is not JSON"),
        (5, f"is of run 'other', not of {measurements[0].run_id!r}"),
        (6, "repeats line 1"),
        (7, "implementation is 5, not text"),
        (8, "is not JSON"),
    ]


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    runs = random_runs(6, count=1)
    files = {f"../../../{name}": content for name, content in _journal(runs).items()}
    files["/etc/passwd"] = b"x"
    home = tmp_path / "deep" / "home"
    assert import_understanding(home, understand("a.zip", zipped(files))) == list(ids_of(runs))
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_run_id_in_an_archive_cannot_be_a_path() -> None:
    ((run, measurements),) = random_runs(6, count=1)
    files = _journal([(run, measurements)])
    (name,) = [name for name in files if name.endswith("run.json")]
    files[name] = json.dumps(run_to_json(run) | {"run_id": "..\\evil"}).encode()
    with pytest.raises(UploadError, match="run_id .* is not of letters, digits"):
        understand("a.zip", zipped(files))


def test_links_in_a_tar_are_not_followed() -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo("run/measurements.jsonl")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(UploadError, match="holds no measurements.jsonl"):
        understand("a.tar", data.getvalue())


@pytest.mark.parametrize("pack", [zipped, gzipped])
def test_an_archive_that_is_damaged_or_too_much_is_refused(pack, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack(_journal(random_runs(7, count=1)))
    with pytest.raises(UploadError, match="cannot be (read|opened)"):
        understand("a.archive", data[: len(data) // 2])
    monkeypatch.setattr(archives, "MAX_UNPACKED", 1_000_000)
    for name in ("measurements.jsonl", "bulk.bin")[: 1 + (pack is gzipped)]:  # a tar unpacks what is not wanted, too
        with pytest.raises(UploadError, match="unpacks to more than 1,000,000 bytes"):
            understand("a.archive", pack({name: b" " * 5_000_000}))
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(UploadError, match="more than 3 files"):
        understand("a.archive", pack({f"{number}.txt": b"" for number in range(9)}))


def test_the_same_run_twice_in_an_archive_is_refused() -> None:
    runs = random_runs(8, count=1)
    files = _journal(runs) | {f"copy/{name}": content for name, content in _journal(runs).items()}
    with pytest.raises(UploadError, match="is in the file twice"):
        understand("a.zip", zipped(files))


CASE = attention_case(batch=1, num_heads=1, seqlen=128, head_dim=64, dtype="float16", causal=True)


def _files(home: Path, run_id: str) -> list[tuple[str, bytes]]:
    row = Measurement(run_id, CASE, "torch_naive", "latency_ms", Status.OK, mode="fwd", value=1.5)
    folder = RunFolder.create(home, Run(run_id, "local", gpu_name=f"GPU of {run_id}"), [row])
    return [(path.name, path.read_bytes()) for path in sorted(folder.path.iterdir()) if path.is_file()]


def test_a_record_and_its_journal_are_one_run_again_whatever_lay_between(tmp_path: Path) -> None:
    first, second = _files(tmp_path / "there", "a"), _files(tmp_path / "there", "b")
    other = ("table.csv", b"implementation,seqlen\n")
    files = [*reversed(first), other, ("state.json", b"{}"), ("log.txt", b"words"), *second]
    found = bundled(files)
    assert [name for name, _ in found] == ["a.zip", "b.zip", "table.csv"]
    for name, data in found[:2]:
        import_understanding(tmp_path / "here", understand(name, data))
    assert RunFolder.open(tmp_path / "here", "b").run().gpu_name == "GPU of b"
    assert len(RunFolder.open(tmp_path / "here", "a").read()[0]) == 1


def test_files_that_do_not_belong_together_stay_as_they_are(tmp_path: Path) -> None:
    record = next(file for file in _files(tmp_path, "a") if file[0] == "run.json")
    journal = next(file for file in _files(tmp_path, "b") if file[0] == "measurements.jsonl")
    for files in ([record, journal], [record], [journal], [("run.json", b"\xff["), ("state.json", b"{}")], []):
        assert bundled(files) == files


def test_the_same_files_are_the_same_upload(tmp_path: Path) -> None:
    files = _files(tmp_path, "a")
    assert bundled(files) == bundled(list(reversed(files)))
