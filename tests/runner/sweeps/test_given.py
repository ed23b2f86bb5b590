"""A sweep over the cases of somebody else's table."""

import shutil
from dataclasses import replace

import pytest

from results.files.journal import RunFolder
from results.records import Case, Measurement, Run, Status, attention_case, decode_case
from runner import launch, sweeps
from runner.__main__ import main
from runner.launch import LaunchError, SweepRequest
from runner.sweeps import SweepError
from runner.sweeps.given import completed, sweep_of
from tests.builders import import_understanding
from tests.cases import cases
from tests.results.formats.peers.peer_files import understood

WHOLE = attention_case(batch=1, num_heads=64, num_kv_heads=8, seqlen=2048, head_dim=128, dtype="bfloat16", causal=True)


def _rows(*cases: Case, mode: str = "fwd") -> list[Measurement]:
    return [Measurement("r", case, "x", "latency_ms", Status.OK, mode=mode, value=1.0) for case in cases]


def test_absent_features_are_said_and_key_heads_are_as_many_as_query_heads() -> None:
    said = replace(WHOLE, num_kv_heads=None, window_size=None, page_size=None, latent_dim=None, head_dim_v=None)
    assert completed(said) == replace(WHOLE, num_kv_heads=64)
    assert completed(replace(WHOLE, head_dim=192, head_dim_v=128)).head_dim_v == 128


def test_a_decoding_case_keeps_its_pages() -> None:
    case = decode_case(
        batch=8, num_heads=64, num_kv_heads=8, context=4096, head_dim=128, dtype="bfloat16", page_size=16
    )
    assert completed(case) == case


@pytest.mark.parametrize(("change", "reason"), cases(__file__, "test_a_case_that_cannot_be_measured_says_why"))
def test_a_case_that_cannot_be_measured_says_why(change: dict, reason: str) -> None:
    assert completed(replace(WHOLE, **change)) == reason


def test_the_sweep_of_a_table_survives_its_record_and_says_what_is_left_out() -> None:
    other = replace(WHOLE, causal=None)
    sweep, left = sweep_of("r", _rows(WHOLE, other, replace(WHOLE, batch=2)))
    assert (sweep.level, sweep.modes, len(sweep.cases())) == ("op", ("fwd",), 2)
    assert left == ["1 cases that do not state causal."]
    assert sweeps.from_json(sweeps.to_json(sweep)) == sweep
    with pytest.raises(SweepError, match="No case of run 'r' can be measured here. 1 cases that do not state causal"):
        sweep_of("r", _rows(other))


def test_an_upload_is_planned_and_asked_for_by_its_run(at_home, tmp_path, capsys) -> None:
    (run_id,) = import_understanding(tmp_path, understood("cudnn_training_c_a100.csv"))
    sweep, _ = launch.cases_of(run_id, tmp_path)
    assert sweep.cases() and {case.dtype for case in sweep.cases()} == {"bfloat16"}
    request = SweepRequest(sweep="given", cases_of=run_id, implementations=("torch_naive",))
    assert launch.checked(request) == sweep
    with pytest.raises(LaunchError, match="is not the name of a run"):
        launch.checked(replace(request, cases_of="../../etc"))
    with pytest.raises(LaunchError, match="There is no run 'nope'"):
        launch.checked(replace(request, cases_of="nope"))
    assert main(["plan", "--cases-of", run_id, "--device", "cpu", "--implementations", "torch_naive"]) == 0
    assert "torch_naive" in capsys.readouterr().out
    assert main(["plan", "quick", "--cases-of", run_id]) == 2


@pytest.mark.slow
def test_the_cases_of_an_upload_are_measured_as_they_are(at_home, tmp_path, shipped, capsys) -> None:
    shutil.copyfile(shipped, tmp_path / shipped.name)
    small = replace(WHOLE, num_heads=2, num_kv_heads=1, seqlen_q=64, seqlen_k=64, head_dim=32, head_dim_v=32)
    rows = [replace(row, run_id="theirs") for row in _rows(replace(small, dtype="float32"))]
    RunFolder.create(tmp_path, Run("theirs", "upload"), rows)
    assert main(["run", "--cases-of", "theirs", "--device", "cpu", "--quick", "--implementations", "torch_naive"]) == 0
    folder = RunFolder.open(tmp_path, capsys.readouterr().out.split()[0])
    measured = [m for m in folder.read()[0] if m.metric == "latency_ms" and m.status is Status.OK]
    assert {m.case for m in measured} == {replace(small, dtype="float32", inputs=measured[0].case.inputs)}
    assert "--cases-of theirs" in (folder.run().command or "")
