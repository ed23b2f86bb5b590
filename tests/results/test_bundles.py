"""Files of run folders that were dragged in one by one."""

from pathlib import Path

from results.formats import import_understanding, understand
from results.formats.bundles import bundled
from results.journal import RunFolder
from results.records import Measurement, Run, Status, attention_case

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
