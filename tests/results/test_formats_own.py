"""What attnbench writes it reads: CSV and JSON exports, journals and archives of run folders, also from strangers."""

import io
import json
import random
import tarfile
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from results import export
from results.formats import UploadError, archives, import_understanding, left_alone, standing, understand
from results.journal import RunFolder
from results.lines import line_of
from results.metrics import METRICS
from results.records import MODES, TIMINGS, Case, Measurement, Run, Status, run_to_json
from results.store import open_store

TEXTS = (
    "plain",
    "=SUM(A1)",
    "+1",
    "-",
    "@x",
    "'quoted'",
    "''",
    "\ttabbed",
    'with "quotes", commas; and | pipes',
    "two\nlines",
    "<script>alert(1)</script>",
    "Grüße 東京 🚀",
    " spaces ",
    "None",
    "1e5",
)


def _run(random_: random.Random, run_id: str) -> Run:
    return Run(
        run_id=run_id,
        source="local",
        created="2026-03-04T05:06:07+00:00",
        title=random_.choice(TEXTS),
        gpu_name=random_.choice((None, *TEXTS[:4], "NVIDIA H200")),
        sm_count=random_.choice((None, 132)),
        gpu_memory_mb=random_.choice((None, 143771.0, 0.1)),
        git_dirty=random_.choice((None, True, False)),
        seed=random_.choice((None, 0, 2**40)),
        notes=random_.choice((None, *TEXTS)),
        sweep=random_.choice(({}, {"name": "quick", "seqlen": [128, 256], "nested": {"a": None, "b": "="}})),
    )


def _measurement(random_: random.Random, run_id: str, number: int) -> Measurement:
    status = random_.choice((Status.OK, Status.OK, *Status))
    ok = status is Status.OK

    def maybe() -> float | None:
        return random_.choice((None, random_.uniform(0, 10), 1e-30, 3.0)) if ok else None

    return Measurement(
        run_id=run_id,
        case=Case(
            level=random_.choice((None, "op", "model")),
            subject=random_.choice((None, "attention", "llama2-7b")),
            batch=random_.choice((None, 1, 8)),
            num_heads=random_.choice((None, 32)),
            num_kv_heads=random_.choice((None, 8)),
            seqlen_q=number + 1,
            dtype=random_.choice((None, "bfloat16", "float8_e4m3fn")),
            causal=random_.choice((None, True, False)),
            window_size=random_.choice((None, 0, 128)),
        ),
        implementation=random_.choice(("triton_fa2", *TEXTS)),
        metric=random_.choice(tuple(METRICS)),
        status=status,
        mode=random_.choice((None, *MODES)),
        timing=random_.choice((None, *TIMINGS)),
        baseline=random_.choice((None, "torch_naive")),
        value=random_.uniform(1e-9, 1e9) if ok else None,
        statistic=random_.choice((None, "median")),
        mean=maybe(),
        std=maybe(),
        ci_low=maybe(),
        n=random_.choice((None, 50)),
        samples=tuple(random_.random() for _ in range(random_.choice((0, 3)))),
        note=random_.choice((None, *TEXTS)),
        flags=random_.choice(((), ("throttled", "a,b"))),
        printed=random_.choice((None, *TEXTS)),
        origin=random_.choice((None, *TEXTS)),
        time=random_.choice((None, "2026-03-04T05:06:07.123456+00:00")),
    )


def _runs(seed: int, count: int = 3) -> list[tuple[Run, list[Measurement]]]:
    random_ = random.Random(seed)
    names = [f"2026-own_run.{seed}-{number}" for number in range(count)]
    return [(_run(random_, name), [_measurement(random_, name, at) for at in range(40)]) for name in names]


def _fill(home: Path, runs: list[tuple[Run, list[Measurement]]]) -> None:
    for run, measurements in runs:
        RunFolder.create(home, run, measurements)


def _exported(home: Path, form: str, names: tuple[str, ...]) -> bytes:
    file = io.BytesIO()
    with closing(open_store(home)) as store:
        export.write(store, form, file, export.Selection(run=names))
    return file.getvalue()


def _ordered(measurements: list[Measurement]) -> list[Measurement]:
    return sorted(measurements, key=lambda measurement: measurement.measurement_id)


def _names(runs: list[tuple[Run, list[Measurement]]]) -> tuple[str, ...]:
    return tuple(run.run_id for run, _ in runs)


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("seed", range(3))
def test_export_and_import_lose_nothing_but_the_source(tmp_path: Path, form: str, seed: int) -> None:
    runs = _runs(seed)
    _fill(tmp_path / "here", runs)
    data = _exported(tmp_path / "here", form, _names(runs))
    found = understand(f"results.{form}", data)
    assert found.rejected == () and found.format == f"own_{form}"
    assert import_understanding(tmp_path / "there", found) == list(_names(runs))
    for run, measurements in runs:
        folder = RunFolder.open(tmp_path / "there", run.run_id)
        assert folder.run() == replace(run, source="upload")
        there, _, problems = folder.read()
        assert problems == [] and _ordered(there) == _ordered(measurements)
    again = _exported(tmp_path / "there", form, _names(runs))
    local, upload = {"csv": (b",local,", b",upload,"), "json": (b'"source": "local"', b'"source": "upload"')}[form]
    assert again == data.replace(local, upload)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_runs_that_are_here_already_are_left_alone_and_the_others_are_added(tmp_path: Path, form: str) -> None:
    runs = _runs(1)
    _fill(tmp_path / "here", runs)
    found = understand(f"a.{form}", _exported(tmp_path / "here", form, _names(runs)))
    assert import_understanding(tmp_path / "here", found) == []
    _fill(tmp_path / "there", runs[:1])
    places = [(run.run_id, run.here, run.known, run.numbers) for run in standing(tmp_path / "there", found)]
    assert places == [(run.run_id, at == 0, 40 * (at == 0), 40) for at, (run, _) in enumerate(runs)]
    assert import_understanding(tmp_path / "there", found) == [runs[1][0].run_id, runs[2][0].run_id]
    assert RunFolder.open(tmp_path / "there", runs[0][0].run_id).run() == runs[0][0]


def test_an_export_of_published_runs_adds_nothing(tmp_path: Path) -> None:
    found = understand("a.csv", _exported(tmp_path, "csv", ("published-torch_vs_triton",)))
    assert len(found.measurements) == 144
    assert import_understanding(tmp_path, found) == [] and not (tmp_path / "runs").exists()


def test_the_original_file_lies_in_every_run_of_an_upload(tmp_path: Path) -> None:
    runs = _runs(2)
    _fill(tmp_path / "here", runs)
    data = _exported(tmp_path / "here", "csv", _names(runs))
    for run_id in import_understanding(tmp_path / "there", understand("a.csv", data)):
        assert (RunFolder.open(tmp_path / "there", run_id).path / "original.csv").read_bytes() == data


def _one_row(**cells: str) -> bytes:
    said = {"run_id": "mine", "implementation": "x", "metric": "latency_ms", "status": "ok", "value": "1.5", **cells}
    return f"{','.join(said)}\n{','.join(said.values())}\n".encode()


@pytest.mark.parametrize(
    ("cells", "column", "reason"),
    [
        ({"value": "nan"}, "value", "must be finite"),
        ({"value": "fast"}, "value", "is not a number"),
        ({"metric": "speed"}, "", "metric 'speed' is not one of latency_ms"),
        ({"value": "1e-300"}, "value", "is neither 0 nor between"),
        ({"status": "fine"}, "status", "'fine' is not one of ok, oom"),
        ({"status": "oom"}, "", "value is 1.5 although the status is oom"),
        ({"implementation": ""}, "", "implementation is empty"),
        ({"dtype": "bf61"}, "", "dtype 'bf61' is not one of"),
        ({"seqlen_q": "12.5"}, "seqlen_q", "is not a whole number"),
        ({"seqlen_q": "4294967296"}, "seqlen_q", "is too large"),
        ({"seqlen_q": "0"}, "", "seqlen_q is 0"),
        ({"causal": "yes"}, "causal", "is neither true nor false"),
        ({"samples": "[NaN]"}, "samples", "is not JSON"),
        ({"samples": "3"}, "samples", "is 3, not a list"),
        ({"flags": "[1]"}, "flags", "holds one that is 1, not text"),
        ({"note": "a\x07b"}, "note", "has the control character U+0007"),
        ({"run_id": "../../etc"}, "", "run_id '../../etc' is not of letters"),
        ({"run_id": ".hidden"}, "", "run_id '.hidden' is not of letters"),
        ({"run_sweep": "[1]"}, "sweep", "is [1], not an object"),
    ],
)
def test_a_bad_cell_of_an_own_csv_is_rejected_with_the_reason(cells: dict[str, str], column: str, reason: str) -> None:
    (rejection,) = understand("a.csv", _one_row(**cells)).rejected
    assert (rejection.line, rejection.column) == (2, column)
    assert rejection.reason.startswith(reason)


def test_rows_that_contradict_each_other_or_repeat_are_rejected() -> None:
    header = "run_id,implementation,metric,status,value,run_gpu_name\n"
    rows = ("a,x,latency_ms,ok,1,L4\n", "a,y,latency_ms,ok,1,L40\n", "a,x,latency_ms,ok,2,L4\n", "a,z\n")
    found = understand("a.csv", (header + "".join(rows)).encode())
    assert [(r.line, r.reason) for r in found.rejected] == [
        (3, "says other things of run a than the rows before"),
        (4, "repeats line 2"),
        (5, "has 2 cells where the header has 6"),
    ]


def test_columns_that_own_exports_do_not_have_are_ignored_and_said() -> None:
    found = understand("a.csv", _one_row(mood="good"))
    assert found.ignored == ("mood",) and len(found.measurements) == 1


def test_an_uploaded_run_can_neither_call_itself_local_nor_published() -> None:
    for source in ("local", "published"):
        assert understand("a.csv", _one_row(run_source=source)).runs[0].source == "upload"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"runs": [], "measurements": []}', "has no measurements"),
        ('{"runs": {}}', "not an object with the lists runs and measurements"),
        ('{"runs": [', "is not JSON"),
        ('{"runs": [{"run_id": "a/b", "source": "local"}], "measurements": []}', "Run number 1: run_id 'a/b'"),
        ('{"runs": [{"run_id": "a", "source": "local", "sm_count": "132"}], "measurements": []}', "sm_count is '132'"),
        ('{"runs": [{"run_id": "a", "source": "local", "evil": 1}], "measurements": []}', "unknown field 'evil'"),
    ],
)
def test_json_that_is_not_an_export_is_refused(text: str, message: str) -> None:
    with pytest.raises(UploadError, match=message):
        understand("a.json", text.encode())


def _journal(runs: list[tuple[Run, list[Measurement]]]) -> dict[str, bytes]:
    files = {}
    for run, measurements in runs:
        files[f"runs/{run.run_id}/run.json"] = json.dumps(run_to_json(run)).encode()
        files[f"runs/{run.run_id}/measurements.jsonl"] = "".join(map(line_of, measurements)).encode()
        files[f"runs/{run.run_id}/log.txt"] = b"not wanted"
    return files


def _zip(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def _tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.parametrize(
    ("filename", "pack"),
    [("runs.zip", _zip), ("runs.tar.gz", _tar), ("runs.tar", lambda files: _tar(files, "w"))],
)
def test_an_archive_of_run_folders_is_carried_over(tmp_path: Path, filename: str, pack) -> None:
    runs = _runs(3, count=2)
    data = pack(_journal(runs))
    found = understand(filename, data)
    assert found.format == "run_folder" and found.rejected == ()
    assert import_understanding(tmp_path, found) == list(_names(runs))
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
    ((run, measurements),) = _runs(4, count=1)
    found = understand("measurements.jsonl", "".join(map(line_of, measurements)).encode())
    assert found.runs[0].gpu_name is None and "Which GPU was it?" in found.questions[0]
    (run_id,) = import_understanding(tmp_path, found, gpu_name="NVIDIA L4")
    assert run_id == run.run_id and RunFolder.open(tmp_path, run_id).run().gpu_name == "NVIDIA L4"


def test_a_last_line_that_was_cut_is_left_out_and_said() -> None:
    ((_, measurements),) = _runs(4, count=1)
    data = "".join(map(line_of, measurements)).encode()
    found = understand("measurements.jsonl", data[:-10])
    assert len(found.measurements) == len(measurements) - 1 and found.rejected == ()
    assert found.assumptions == ("The last line of measurements.jsonl is cut off and left out.",)


def test_a_bad_line_within_a_journal_is_rejected_with_its_number() -> None:
    ((_, measurements),) = _runs(5, count=1)
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
    runs = _runs(6, count=1)
    files = {f"../../../{name}": content for name, content in _journal(runs).items()}
    files["/etc/passwd"] = b"x"
    home = tmp_path / "deep" / "home"
    assert import_understanding(home, understand("a.zip", _zip(files))) == list(_names(runs))
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_run_id_in_an_archive_cannot_be_a_path() -> None:
    ((run, measurements),) = _runs(6, count=1)
    files = _journal([(run, measurements)])
    (name,) = [name for name in files if name.endswith("run.json")]
    files[name] = json.dumps(run_to_json(run) | {"run_id": "..\\evil"}).encode()
    with pytest.raises(UploadError, match="run_id .* is not of letters, digits"):
        understand("a.zip", _zip(files))


def test_links_in_a_tar_are_not_followed() -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo("run/measurements.jsonl")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(UploadError, match="holds no measurements.jsonl"):
        understand("a.tar", data.getvalue())


@pytest.mark.parametrize("pack", [_zip, _tar])
def test_an_archive_that_unpacks_to_too_much_is_refused(pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(UploadError, match="unpacks to more than 1,000,000 bytes"):
        understand("a.archive", pack({"measurements.jsonl": b" " * 5_000_000}))


def test_a_tar_of_unwanted_bulk_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(UploadError, match="unpacks to more than"):
        understand("a.tar.gz", _tar({"bulk.bin": bytes(5_000_000)}))


@pytest.mark.parametrize("pack", [_zip, _tar])
def test_an_archive_of_too_many_files_is_refused(pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(UploadError, match="more than 3 files"):
        understand("a.archive", pack({f"{number}.txt": b"" for number in range(9)}))


@pytest.mark.parametrize("pack", [_zip, _tar])
def test_a_damaged_archive_is_refused(pack) -> None:
    data = pack(_journal(_runs(7, count=1)))
    with pytest.raises(UploadError, match="The archive cannot be read"):
        understand("a.archive", data[: len(data) // 2])


def test_the_same_run_twice_in_an_archive_is_refused() -> None:
    runs = _runs(8, count=1)
    files = _journal(runs) | {f"copy/{name}": content for name, content in _journal(runs).items()}
    with pytest.raises(UploadError, match="is in the file twice"):
        understand("a.zip", _zip(files))


# Markdown


def _as_read(text: str | None) -> str | None:
    """What a cell of a Markdown table keeps of a text: no line ends, no space around it, no empty text."""
    return " ".join(text.split()) or None if text else None


def _as_in_markdown(measurement: Measurement) -> Measurement:
    texts = ("implementation", "note", "printed", "origin")
    changed = {name: _as_read(getattr(measurement, name)) for name in texts}
    return replace(measurement, **changed, samples=(), round_sizes=())


@pytest.mark.parametrize("seed", range(3))
def test_a_markdown_export_comes_back_with_every_number_and_says_what_it_leaves_out(tmp_path: Path, seed: int) -> None:
    runs = _runs(seed)
    _fill(tmp_path / "here", runs)
    found = understand("results.md", _exported(tmp_path / "here", "md", _names(runs)))
    assert (found.format, found.rejected) == ("own_markdown", ())
    assert "leaves out samples" in found.assumptions[0]
    expected = [_as_in_markdown(m) for _, measurements in runs for m in measurements]
    assert _ordered(list(found.measurements)) == _ordered(expected)
    for (run, _), read in zip(runs, sorted(found.runs, key=lambda run: run.run_id), strict=True):
        assert (read.run_id, read.measured_tflops, read.seed) == (run.run_id, run.measured_tflops, run.seed)
        assert read.title == _as_read(run.title)
        assert read.sweep == {}


def test_a_markdown_export_of_runs_that_are_here_adds_nothing(tmp_path: Path) -> None:
    found = understand("a.md", _exported(tmp_path, "md", ("published-torch_vs_triton",)))
    assert len(found.measurements) == 144
    assert import_understanding(tmp_path, found) == []


def test_a_run_that_is_here_in_part_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    ((run, measurements),) = _runs(5, 1)
    _fill(tmp_path / "here", [(run, measurements)])
    found = understand("a.csv", _exported(tmp_path / "here", "csv", (run.run_id,)))
    _fill(tmp_path / "there", [(run, measurements[:15])])
    assert [(part.here, part.known, part.numbers) for part in standing(tmp_path / "there", found)] == [(True, 15, 40)]
    assert "15 of the file's 40 numbers and is left alone" in left_alone(standing(tmp_path / "there", found))[0]
    assert import_understanding(tmp_path / "there", found) == []
