"""`python -m results` as a person or a script uses it: data on stdout, sentences on stderr, exit status 0, 1 or 2."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from results.__main__ import main
from results.files import journal
from results.files.journal import RunFolder
from results.formats import bounded
from results.records import Measurement, Run, Status, attention_case, decode_case
from results.store.database import open_store
from tests.builders import LONG, ROW
from tests.results.formats import spreadsheets

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)


def measurements(run_id: str) -> list[Measurement]:
    return [
        Measurement(run_id, CASE, name, "latency_ms", Status.OK, mode="fwd", timing="eager", value=value)
        for name, value in (("torch_naive", 2.0), ("triton_fa2", 0.5))
    ]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "published")
    run = Run("r1", "local", created="2026-11-21T08:00:00Z", gpu_name="H200")
    RunFolder.create(tmp_path / "home", run, measurements("r1"))
    return tmp_path / "home"


def refused(capfd: pytest.CaptureFixture, *arguments: str) -> str:
    """What a command that fails says."""
    assert main(arguments) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


def test_an_export_says_how_many_rows_a_layout_of_another_tool_has_room_for(home, tmp_path, capfd) -> None:
    case = decode_case(batch=1, num_heads=8, num_kv_heads=8, context=512, head_dim=64, dtype="float16")
    row = replace(measurements("r2")[0], case=case, mode="decode")
    RunFolder.create(home, Run("r2", "local", created="2026-11-21T09:00:00Z", gpu_name="H200"), [row])
    export = ["export", "--format", "liger", "--output", str(tmp_path / "out.csv")]
    assert main(export) == 0
    assert "2 of 3 measurements written. liger has room for measured latencies" in capfd.readouterr().err
    assert main([*export, "--run", "r2"]) == 1
    assert "0 of 1 measurements written." in capfd.readouterr().err


def test_what_is_exported_can_be_imported_elsewhere_and_a_second_time_is_a_no_op(home, tmp_path, monkeypatch, capfd):
    file = tmp_path / "out.csv"
    assert main(["export", "--output", str(file)]) == 0
    assert "2 measurements written" in capfd.readouterr().err
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path / "elsewhere"))
    assert main(["import", str(file), "--dry-run"]) == 0
    assert journal.run_folders(tmp_path / "elsewhere") == []
    capfd.readouterr()
    assert main(["import", str(file)]) == 0
    assert capfd.readouterr().out == "r1\n"
    assert main(["import", str(file)]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "All 2 numbers of run r1 are here already." in err
    assert RunFolder.open(tmp_path / "elsewhere", "r1").read()[0] == measurements("r1")


def test_a_copy_of_a_run_as_of_another_chip_is_told_when_it_is_imported(home, tmp_path, capfd) -> None:
    rows = [replace(m, metric="compile_ms", timing=None, value=m.value + 3) for m in measurements("r2")]
    RunFolder.create(home, Run("r2", "local", created="2026-11-21T09:00:00Z", gpu_name="NVIDIA H200"), rows)
    file = tmp_path / "out.json"
    assert main(["export", "--run", "r2", "--output", str(file), "--format", "json"]) == 0
    file.write_text(file.read_text().replace('"r2"', '"r3"').replace("NVIDIA H200", "NVIDIA B200"))
    assert main(["import", str(file)]) == 0
    told = "In 2 of 2 cells the compile times of r3 (NVIDIA B200) are those of r2 (NVIDIA H200) to the digit"
    assert f"  impossible, numbers of another run: {told}" in capfd.readouterr().err


def test_a_file_that_cannot_be_imported_is_named_and_the_others_are_taken(home, tmp_path, capfd, monkeypatch) -> None:
    (tmp_path / "bad.csv").write_text("this is,no result\n1,2\n")
    os.truncate(os.open(tmp_path / "long.csv", os.O_CREAT | os.O_WRONLY), 1 << 40)
    main(["export", "--output", str(tmp_path / "good.csv")])
    (home / "runs" / "r1").rename(tmp_path / "r1")
    missing, long = str(tmp_path / "missing.csv"), str(tmp_path / "long.csv")
    assert main(["import", str(tmp_path / "bad.csv"), missing, long, str(tmp_path / "good.csv")]) == 1
    out, err = capfd.readouterr()
    assert out == "r1\n"
    assert "bad.csv" in err
    assert f"{missing} cannot be read: No such file or directory." in err
    assert f"{long} cannot be read: it has 1,099,511,627,776 bytes; at most 268,435,456 are read at once." in err
    (tmp_path / "good.csv").write_text(LONG + ROW * 20_000)
    monkeypatch.setattr(bounded, "MEMORY", 1 << 20)
    assert main(["import", str(tmp_path / "good.csv")]) == 1
    assert "memory" in capfd.readouterr().err


def test_an_export_takes_only_what_is_asked_for_and_a_filter_that_matches_nothing_says_what_is_possible(capfd) -> None:
    assert main(["export", "--format", "json", "--implementation", "triton_fa2", "--gpu", "H200", "--run", "r1"]) == 0
    found = json.loads(capfd.readouterr().out)["measurements"]
    assert [record["implementation"] for record in found] == ["triton_fa2"]
    answer = refused(capfd, "export", "--dtype", "bf16")
    assert answer == "There is no dtype 'bf16'. Possible: float16.\n"


@pytest.mark.parametrize("form", ["csv", "json", "md", "parquet"])
def test_every_format_goes_to_a_file_and_to_stdout_alike(form, tmp_path, capfdbinary) -> None:
    assert main(["export", "--format", form, "--output", str(tmp_path / "out")]) == 0
    capfdbinary.readouterr()
    assert main(["export", "--format", form]) == 0
    out = capfdbinary.readouterr().out
    written = (tmp_path / "out").read_bytes()
    assert len(out) == len(written) > 100
    assert form == "parquet" or out == written


def test_an_output_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path, capfd) -> None:
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    assert "cannot be written: Is a directory" in refused(capfd, "export", "--output", str(tmp_path / "folder"))
    assert "cannot be written" in refused(capfd, "export", "--output", "/proc/nothing/out.csv")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [[], ["explode"], ["export", "--format", "xls"], ["import"], ["report", "nope"]])
def test_wrong_arguments_are_status_two(arguments: list[str], capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage" in capfd.readouterr().err


def test_runs_are_listed_with_what_is_wrong_with_them(home: Path, capfd: pytest.CaptureFixture) -> None:
    with open(home / "runs" / "r1" / "measurements.jsonl", "a") as file:
        file.write("{torn\n")
    assert main(["runs"]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[1].split("\t") == ["r1", "local", "crashed", "2026-11-21T08:00:00Z", "H200", "2"]
    assert "r1, line 3: Not a complete JSON line" in err


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_checked(home, capfd) -> None:
    slow = Measurement("r4", CASE, "torch_naive", "latency_ms", Status.OK, mode="fwd", timing="eager", value=1e-9)
    RunFolder.create(home, Run("r4", "local", gpu_name="NVIDIA H200"), [slow])
    RunFolder.create(home, Run("r2", "local"), measurements("r2"))
    RunFolder.create(home, Run("r3", "local"), measurements("r3"))
    (home / "runs" / "r2" / "run.json").write_text("{torn")
    journal_of_r3 = home / "runs" / "r3" / "measurements.jsonl"
    journal_of_r3.unlink()
    journal_of_r3.mkdir()
    assert main(["check"]) == 0
    out, err = capfd.readouterr()
    assert "r4" in out
    assert "run.json is not a run's record" in err and "measurements.jsonl cannot be read" in err


def test_a_report_renders_the_published_numbers_and_those_of_a_run(home, shipped, monkeypatch, capfd) -> None:
    shutil.copyfile(shipped, home / shipped.name)
    monkeypatch.setattr(journal, "PUBLISHED", journal.REPOSITORY / "results" / "published")
    assert main(["report", "fa2_rtx4060"]) == 0
    assert capfd.readouterr().out.startswith("# FlashAttention-2")
    assert "There is no run 'r9'" in refused(capfd, "report", "fa2_rtx4060", "--run", "r9")
    assert "There is no run 'r9'; `python -m results runs`" in refused(capfd, "export", "--run", "r9")


def test_rebuild_makes_the_file_anew_unless_somebody_has_it(home: Path, capfd: pytest.CaptureFixture) -> None:
    home.joinpath("store.duckdb").write_bytes(b"garbage")
    assert main(["rebuild"]) == 0
    assert "2 measurements" in capfd.readouterr().err
    with closing(open_store(home)) as opened:
        assert opened.notice is None
        assert "close the store first" in refused(capfd, "rebuild")


def test_a_reader_that_has_seen_enough_is_no_error(home: Path, shipped: Path) -> None:
    shutil.copyfile(shipped, home / shipped.name)
    command = f"{sys.executable} -m results export --run r2 --format md | head -1; exit ${{PIPESTATUS[0]}}"
    many = [Measurement("r2", CASE, "x", "latency_ms", Status.OK, value=1.0, origin=str(n)) for n in range(5000)]
    RunFolder.create(home, Run("r2", "local"), many)
    answer = subprocess.run(
        ["bash", "-c", command], cwd=journal.REPOSITORY, env=os.environ, capture_output=True, text=True
    )
    assert (answer.returncode, "Traceback" in answer.stderr) == (0, False)
    assert answer.stdout.startswith("| run_id")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "Cancelled."),
        (OSError(28, "No space left"), 1, "The output cannot be used: No space left."),
        (OSError(28, "No space left", "/home"), 1, "/home cannot be used: No space left."),
    ],
)
def test_a_command_that_is_cut_off_ends_with_a_word_and_its_own_status(
    monkeypatch, capsys, error, status, said
) -> None:
    monkeypatch.setattr("results.__main__.rebuild", Mock(side_effect=error))
    assert main(["rebuild"]) == status
    assert capsys.readouterr().err == f"{said}\n"


def test_import_takes_folders_and_zips_and_says_how_columns_are_read(home, tmp_path, capsys) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "a.csv").write_text(LONG + ROW)
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("b.csv", LONG + ROW.replace("torch", "mine"))
        archive.writestr("sub/c.csv", "hello\n")
    assert main(["import", str(folder), "--gpu", "NVIDIA L4"]) == 1  # c.csv is no table
    said = capsys.readouterr()
    assert len(said.out.split()) == 2 and "more-c.csv is of no known format" in said.err
    assert "Read: impl as implementation" in said.err


def test_import_reads_a_table_as_told_and_remembers_it(home, tmp_path, capsys) -> None:
    table = tmp_path / "report.csv"
    table.write_text(spreadsheets.PERF_REPORT)
    assert main(["import", str(table)]) == 1
    told = ["--column", "Triton [FP16]=tflops/tflops:triton:fwd", "--column", "Flash-2=latency_ms/us:flash:fwd"]
    assert main(["import", str(table), *told, "--all-rows", "dtype=fp16"]) == 0
    assert "4 measurements" in capsys.readouterr().err
    assert main(["import", str(table)]) == 0
    assert "are here already" in capsys.readouterr().err
    assert main(["import", str(table), "--column", "nope=seqlen"]) == 1
    assert "There is no column 'nope'" in capsys.readouterr().err
