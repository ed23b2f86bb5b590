"""An imported table beside a run of ours: same cases, like cases, and what differs in the measuring."""

from dataclasses import replace

import pytest

from results.compare import beside
from results.records import Case, Measurement, Run, Status, attention_case
from tests.cases import cases

CASE = attention_case(batch=1, num_heads=64, num_kv_heads=8, seqlen=2048, head_dim=128, dtype="bfloat16", causal=False)
LIKE = replace(CASE, batch=8, num_heads=16, num_kv_heads=16)
THEIRS = Run("theirs", "upload", gpu_name="NVIDIA H200", notes="Times are kernel time, after an L2 flush.")
OURS = Run("ours", "shipped", gpu_name="NVIDIA H200", torch="2.11", power_limit_w=700.0)


def _row(run: Run, case: Case, name: str, ms: float | None, **rest: object) -> Measurement:
    status = Status.OK if ms else Status.OOM
    said = {"mode": "fwd", "timing": "kernel", "value": ms, **rest}
    return Measurement(run.run_id, case, name, "latency_ms", status, **said)


def test_the_same_case_has_times_and_a_like_one_only_its_rate() -> None:
    theirs = [_row(THEIRS, CASE, "cudnn", 0.2), _row(THEIRS, replace(CASE, seqlen_q=4096, seqlen_k=4096), "cudnn", 1.0)]
    ours = [_row(OURS, CASE, "mine", 0.1), _row(OURS, replace(LIKE, seqlen_q=4096, seqlen_k=4096), "mine", 2.0)]
    same, like = beside.rows(theirs, ours)
    assert same.same and [(c.implementation, c.ours, c.latency_ms) for c in same.cells] == [
        ("cudnn", False, 0.2),
        ("mine", True, 0.1),
    ]
    assert same.cells[0].tflops == pytest.approx(4 * 2048**2 * 128 * 64 / 0.2e9)
    assert not like.same and like.cells[1].case.batch == 8
    assert same.fastest.implementation == "mine"


def test_another_mask_window_or_dtype_is_no_like_case() -> None:
    ours = [_row(OURS, case, "mine", 1.0) for case in (replace(LIKE, causal=True), replace(LIKE, window_size=128))]
    assert beside.rows([_row(THEIRS, CASE, "cudnn", 0.2)], ours) == []


@pytest.mark.parametrize(("seqlens", "nearest"), [((1024, 3072, 8192), 3072), ((512, 8192), None)])
def test_without_the_length_the_nearest_within_a_factor_of_two_is_a_like_case(seqlens, nearest) -> None:
    ours = [_row(OURS, replace(CASE, seqlen_q=each, seqlen_k=each), "mine", 1.0) for each in seqlens]
    found = beside.rows([_row(THEIRS, CASE, "cudnn", 0.2)], ours)
    assert [row.cells[1].case.seqlen_q for row in found] == ([nearest] if nearest else [])
    assert not any(row.same for row in found)
    stated_less = replace(CASE, dtype=None)
    assert beside.rows([_row(THEIRS, stated_less, "cudnn", 0.2)], ours) == []


def test_a_failure_stays_one_and_another_precision_is_not_the_fastest() -> None:
    ours = [_row(OURS, CASE, "mine", None), _row(OURS, CASE, "gluon_fp8", 0.05)]
    (row,) = beside.rows([_row(THEIRS, CASE, "cudnn", 0.2)], ours)
    assert row.fastest.implementation == "cudnn"
    assert {cell.implementation: str(cell.status) for cell in row.cells}["mine"] == "oom"
    cells = [replace(row.cells[0], tflops=None, latency_ms=ms, same=ms > 0.1) for ms in (0.2, 0.1)]
    assert replace(row, cells=(*cells,)).fastest is cells[0], "a time of another size is no rival"


def test_partners_are_runs_of_the_same_gpu_with_most_same_cases_first() -> None:
    theirs = (THEIRS, [_row(THEIRS, CASE, "cudnn", 0.2)])
    other = replace(OURS, run_id="elsewhere", gpu_name="NVIDIA A100")
    like = replace(OURS, run_id="like")
    runs = [
        (other, [_row(other, CASE, "mine", 1.0)]),
        (like, [_row(like, LIKE, "mine", 1.0)]),
        (OURS, [_row(OURS, CASE, "mine", 1.0)]),
        (THEIRS, theirs[1]),
    ]
    assert beside.partners(theirs, runs) == [("ours", 1, 0), ("like", 0, 1), ("elsewhere", 1, 0)]


def test_what_differs_in_the_measuring_is_named_and_what_is_equal_is_not() -> None:
    theirs = (THEIRS, [_row(THEIRS, CASE, "cudnn", 0.2, timing=None)])
    ours = (OURS, [_row(OURS, CASE, "mine", 0.1, sm_clock_mhz=1980.0)])
    found = {name: (one, other) for name, one, other in beside.differences(theirs, ours)}
    assert found == cases(__file__, "differences")
