"""What attnbench writes it reads: CSV, JSON and Markdown exports."""

import io
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from results.files.journal import RunFolder
from results.formats import UploadError, left_alone, standing, understand
from results.records import Measurement
from results.render import export
from results.spread import spread
from results.store.database import open_store
from tests.builders import fill, ids_of, import_understanding, ordered, random_runs
from tests.cases import cases


def _exported(home: Path, form: str, names: tuple[str, ...]) -> bytes:
    file = io.BytesIO()
    with closing(open_store(home)) as store:
        export.write(store, form, file, export.Selection(run=names))
    return file.getvalue()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("seed", range(3))
def test_export_and_import_lose_nothing_but_the_source(tmp_path: Path, form: str, seed: int) -> None:
    runs = random_runs(seed)
    fill(tmp_path / "here", runs)
    data = _exported(tmp_path / "here", form, ids_of(runs))
    found = understand(f"results.{form}", data)
    assert found.rejected == () and found.format == f"own_{form}"
    assert import_understanding(tmp_path / "there", found) == list(ids_of(runs))
    for run, measurements in runs:
        folder = RunFolder.open(tmp_path / "there", run.run_id)
        assert folder.run() == replace(run, source="upload")
        there, _, problems = folder.read()
        assert problems == [] and ordered(there) == ordered(measurements)
    again = _exported(tmp_path / "there", form, ids_of(runs))
    local, upload = {"csv": (b",local,", b",upload,"), "json": (b'"source": "local"', b'"source": "upload"')}[form]
    assert again == data.replace(local, upload)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("form", ["csv", "json"])
def test_runs_that_are_here_already_are_left_alone_and_the_others_are_added(tmp_path: Path, form: str) -> None:
    runs = random_runs(1)
    fill(tmp_path / "here", runs)
    found = understand(f"a.{form}", _exported(tmp_path / "here", form, ids_of(runs)))
    assert import_understanding(tmp_path / "here", found) == []
    fill(tmp_path / "there", [(runs[0][0], runs[0][1][:15])])
    there = standing(tmp_path / "there", found)
    places = [(run.run_id, run.here, run.known, run.numbers) for run in there]
    assert places == [(run.run_id, at == 0, 15 * (at == 0), 40) for at, (run, _) in enumerate(runs)]
    assert "15 of the file's 40 numbers" in left_alone(there)[0]
    assert import_understanding(tmp_path / "there", found) == [runs[1][0].run_id, runs[2][0].run_id]
    assert RunFolder.open(tmp_path / "there", runs[0][0].run_id).run() == runs[0][0]


@pytest.mark.parametrize("form", ["csv", "md"])
def test_an_export_of_published_runs_adds_nothing(tmp_path: Path, shipped: Path, form: str) -> None:
    shutil.copyfile(shipped, tmp_path / shipped.name)
    found = understand(f"a.{form}", _exported(tmp_path, form, ("published-torch_vs_triton",)))
    assert len(found.measurements) == 144
    assert import_understanding(tmp_path, found) == [] and not (tmp_path / "runs").exists()


def _one_row(**cells: str) -> bytes:
    said = {"run_id": "mine", "implementation": "x", "metric": "latency_ms", "status": "ok", "value": "1.5", **cells}
    return f"{','.join(said)}\n{','.join(said.values())}\n".encode()


@pytest.mark.parametrize(
    ("cells", "column", "reason"), cases(__file__, "test_a_bad_cell_of_an_own_csv_is_rejected_with_the_reason")
)
def test_a_bad_cell_of_an_own_csv_is_rejected_with_the_reason(cells: dict[str, str], column: str, reason: str) -> None:
    (rejection,) = understand("a.csv", _one_row(**cells)).rejected
    assert (rejection.line, rejection.column) == (2, column)
    assert rejection.reason.startswith(reason)


@pytest.mark.parametrize(("text", "message"), cases(__file__, "test_json_that_is_not_an_export_is_refused"))
def test_json_that_is_not_an_export_is_refused(text: str, message: str) -> None:
    with pytest.raises(UploadError, match=message):
        understand("a.json", text.encode())


def _as_read(text: str | None) -> str | None:
    """What a cell of a Markdown table keeps of a text: no line ends, no space around it, no empty text."""
    return " ".join(text.split()) or None if text else None


def _as_in_markdown(measurement: Measurement) -> Measurement:
    texts = ("implementation", "note", "printed", "origin")
    changed = {name: _as_read(getattr(measurement, name)) for name in texts}
    return replace(measurement, **changed, samples=(), round_sizes=())


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("seed", range(3))
def test_a_markdown_export_comes_back_with_every_number_and_says_what_it_leaves_out(tmp_path: Path, seed: int) -> None:
    runs = random_runs(seed)
    fill(tmp_path / "here", runs)
    found = understand("results.md", _exported(tmp_path / "here", "md", ids_of(runs)))
    assert (found.format, found.rejected) == ("own_markdown", ())
    assert "leaves out samples" in found.assumptions[0]
    expected = [_as_in_markdown(m) for _, measurements in runs for m in measurements]
    assert ordered(list(found.measurements)) == ordered(expected)
    for (run, _), read in zip(runs, sorted(found.runs, key=lambda run: run.run_id), strict=True):
        assert (read.run_id, read.measured_tflops, read.seed) == (run.run_id, run.measured_tflops, run.seed)
        assert read.title == _as_read(run.title)
        assert read.sweep == {}


SAMPLED = replace(
    random_runs(1)[0][1][0],
    **{"status": "ok", "metric": "latency_ms", "note": None, "origin": None, **spread([1.0, 1.1, 1.2, 1.3, 1.4, 2.0])},
    round_sizes=(3, 3),
)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize(
    ("changes", "reason"), cases(__file__, "test_statistics_that_the_samples_of_an_upload_do_not_give_are_rejected")
)
def test_statistics_that_the_samples_of_an_upload_do_not_give_are_rejected(tmp_path, form, changes, reason) -> None:
    run = random_runs(1)[0][0]
    fill(tmp_path, [(run, [replace(SAMPLED, **changes)])])
    found = understand(f"a.{form}", _exported(tmp_path, form, (run.run_id,)))
    assert found.measurements == ()
    assert [fault.reason[: len(reason)] for fault in found.rejected] == [reason]


@pytest.mark.usefixtures("home")
def test_statistics_that_an_upload_leaves_out_follow_from_its_samples(tmp_path: Path) -> None:
    run = random_runs(1)[0][0]
    bare = dict.fromkeys(("mean", "std", "p20", "p80", "ci_low", "ci_high", "n"))
    fill(tmp_path, [(run, [replace(SAMPLED, **bare)])])
    assert understand("a.json", _exported(tmp_path, "json", (run.run_id,))).measurements == (SAMPLED,)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_latency_of_nothing_or_less_is_rejected_with_its_row(tmp_path: Path, value: str) -> None:
    run = random_runs(1)[0][0]
    nothing = dict.fromkeys(("mean", "p20", "p80", "ci_low", "ci_high", "n", "std"))
    fill(tmp_path, [(run, [replace(SAMPLED, value=7.0, samples=(), round_sizes=(), **nothing)])])
    data = _exported(tmp_path, "csv", (run.run_id,))
    (fault,) = understand("a.csv", data.replace(b",7.0,", f",{value},".encode())).rejected
    assert (fault.line, fault.reason) == (2, f"value is {value}; latency_ms must be above 0")
