"""An import of an uploaded table happens whole, once or not at all."""

import pickle
from pathlib import Path

import pytest

from results.files import durable
from results.files.journal import RunFolder
from results.formats import (
    AlreadyHere,
    Understanding,
    UploadError,
    import_for_undo,
    left_alone,
    standing,
    take_back,
    understand,
)
from results.formats.importing import NEW, REPLACE
from tests.builders import LONG, ROW, import_understanding


def test_an_import_writes_a_run_with_the_original_file_beside(tmp_path: Path) -> None:
    data = (LONG + ROW).encode()
    found = understand("dir/My Table.CSV", data)
    (run_id,) = import_understanding(tmp_path, found, gpu_name="NVIDIA L4")
    folder = RunFolder.open(tmp_path, run_id)
    assert run_id == f"upload-{found.sha256[:12]}"
    assert (folder.run().source, folder.run().gpu_name, folder.run().title) == ("upload", "NVIDIA L4", "My Table.CSV")
    assert found.sha256 in (folder.run().notes or "")
    assert "d_model is the head dimension of queries, keys and values." in (folder.run().notes or "")
    assert folder.read()[0] == list(found.measurements)
    assert (folder.path / "original.csv").read_bytes() == data
    assert folder.condition() == "finished"


def test_the_second_import_of_the_same_bytes_adds_nothing(tmp_path: Path) -> None:
    found = understand("a.csv", (LONG + ROW).encode())
    import_understanding(tmp_path, found)
    again = understand("renamed.csv", (LONG + ROW).encode())
    assert import_understanding(tmp_path, again) == []
    assert [(run.here, run.known == run.numbers > 0) for run in standing(tmp_path, again)] == [(True, True)]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [found.runs[0].run_id]


def test_an_understanding_survives_a_cache_without_its_tables() -> None:
    found = understand("a.csv", (LONG + ROW).encode())
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found and "sheets" in vars(found.upload) and "sheets" not in vars(copy.upload)


def test_a_file_is_imported_only_with_a_good_line_a_plain_gpu_name_and_leave_to_skip_rejected_cells(tmp_path) -> None:
    found = understand("a.csv", (LONG + ROW.replace("0.35", "nan")).encode())
    with pytest.raises(UploadError, match="No line of the file can be taken"):
        import_understanding(tmp_path, found, skip_rejected=True)
    found = understand("a.csv", (LONG + ROW).encode())
    with pytest.raises(UploadError, match="The GPU name 'a.*' has the control character"):
        import_understanding(tmp_path, found, gpu_name="a\x07b")
    found = understand("a.csv", (LONG + ROW + ROW.replace("0.35", "nan").replace("128", "256")).encode())
    with pytest.raises(UploadError, match="1 cells or lines are rejected, the first in line 3, column forward_ms_mean"):
        import_understanding(tmp_path, found)
    assert not (tmp_path / "runs").exists()
    (run_id,) = import_understanding(tmp_path, found, skip_rejected=True)
    assert "1 rejected cells or lines are left out." in (RunFolder.open(tmp_path, run_id).run().notes or "")


def test_when_a_later_run_cannot_be_written_no_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = LONG.replace("impl,", "impl,gpu,")
    rows = "".join(ROW.replace("torch,", f"torch,{gpu},") for gpu in ("A100", "H100"))
    found = understand("a.csv", (header + rows).encode())
    rename = Path.rename

    def fail_on_the_second(path: Path, target: Path) -> Path:
        if Path(target).parent == tmp_path / "runs" and Path(target).name.endswith("-2"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_on_the_second)
    with pytest.raises(UploadError, match="cannot be written to .*: the disk is full; free some"):
        import_understanding(tmp_path, found)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_full_disk_is_said_of_the_upload_and_not_of_a_run_to_resume(tmp_path: Path, monkeypatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "write_synced", full)
    with pytest.raises(UploadError) as refused:
        import_understanding(tmp_path, understand("a.csv", (LONG + ROW).encode()))
    said = "the disk is full; free some space and import it again."
    assert str(refused.value) == f"The upload cannot be written to {tmp_path / 'runs'}: {said}"
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_that_ships_is_left_alone_and_cannot_be_replaced(tmp_path: Path) -> None:
    header, row = "run_id,implementation,metric,status,value\n", "{},x,latency_ms,ok,1.5\n"
    ships = understand("a.csv", (header + row.format("h200-energy")).encode())
    own = understand("b.csv", (header + row.format("mine")).encode())
    other = understand("c.csv", (header + row.format("mine").replace("x", "y")).encode())
    assert import_understanding(tmp_path, ships) == [] and import_understanding(tmp_path, own) == ["mine"]
    (sentence,) = left_alone(standing(tmp_path, ships))
    assert sentence == ("Run h200-energy is here with 0 of the file's 1 numbers. Import it as a new run, or leave it.")
    assert left_alone(standing(tmp_path, other))[0].endswith("new run, replace what is here, or leave it.")
    with pytest.raises(UploadError, match="There is no run 'h200-energy'"):
        import_understanding(tmp_path, ships, existing=REPLACE)
    assert import_understanding(tmp_path, ships, existing=NEW) == ["h200-energy-2"]


def _of_gpu(gpu: str) -> Understanding:
    text = f"run_id,implementation,metric,status,value,run_gpu_name\nmine,x,latency_ms,ok,1.5,{gpu}\n"
    return understand("a.csv", text.encode())


def test_a_run_of_the_same_id_and_another_gpu_is_left_taken_as_new_or_replaced(tmp_path: Path) -> None:
    import_understanding(tmp_path, _of_gpu("A100"))
    other = _of_gpu("H100")
    (sentence,) = left_alone(standing(tmp_path, other))
    assert "of GPU A100 (the file says H100)" in sentence
    assert import_understanding(tmp_path, other) == []
    assert import_understanding(tmp_path, other, existing=NEW) == ["mine-2"]
    assert RunFolder.open(tmp_path, "mine-2").read()[0][0].run_id == "mine-2"
    arrived = import_for_undo(tmp_path, other, existing=REPLACE)
    assert RunFolder.open(tmp_path, "mine").run().gpu_name == "H100"
    take_back(tmp_path, arrived)
    assert RunFolder.open(tmp_path, "mine").run().gpu_name == "A100"


def test_of_two_imports_at_the_same_moment_one_is_told_that_it_is_here(tmp_path: Path, monkeypatch) -> None:
    found = understand("a.csv", (LONG + ROW).encode())
    create = RunFolder.create.__func__

    def while_another_comes(cls: type, home: Path, *rest: object) -> RunFolder:
        monkeypatch.setattr(RunFolder, "create", classmethod(create))
        import_understanding(tmp_path, found)
        return RunFolder.create(home, *rest)

    monkeypatch.setattr(RunFolder, "create", classmethod(while_another_comes))
    with pytest.raises(AlreadyHere, match="a.csv is here already: another import brought it at the same moment"):
        import_understanding(tmp_path, found)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [found.runs[0].run_id]


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(UploadError, match="The upload cannot be written"):
        import_understanding(tmp_path, understand("a.csv", (LONG + ROW).encode()))
