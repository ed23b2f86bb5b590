"""Two sides compared: what comes first, what changed beside the times, what is not mixed; and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from results.__main__ import main
from results.compare.compare import Side, as_json, compare
from results.files.journal import RunFolder
from results.records import Measurement, Run, Status
from tests.builders import STANDARD, sampled, small_case, timed
from tests.cases import cases

LONG = replace(small_case(), seqlen_q=256, seqlen_k=256)
FULL = replace(small_case(), causal=False)
RUN = Run("r1", "local", gpu_name="NVIDIA H200", driver="570", kernel_hash="aaa", protocol=STANDARD)


def failed(status: Status, **fields) -> Measurement:
    given = {"mode": "fwd", "timing": "kernel", "case": small_case(), "implementation": "x"} | fields
    return Measurement("r1", metric="latency_ms", status=status, note="24 GB needed", **given)


def test_regressions_come_first_and_a_number_that_is_gone_before_all():
    before = [
        sampled(1.0, seed=1),
        sampled(2.0, seed=2, mode="bwd"),
        sampled(1.0, seed=3, case=LONG),
        sampled(1.0, seed=4, case=FULL),
        failed(Status.OOM, mode="fwd_bwd"),
    ]
    after = [
        sampled(1.0, seed=5),
        sampled(1.0, seed=6, mode="bwd"),
        sampled(1.5, seed=7, case=LONG),
        failed(Status.INCORRECT, case=FULL),
        sampled(3.0, seed=8, mode="fwd_bwd"),
    ]
    found = compare(Side(RUN, before), Side(replace(RUN, run_id="r2", gpu_name="NVIDIA H100"), after))
    assert [cell.outcome for cell in found.cells] == ["LOST", "SLOWER", "UNCLEAR", "FASTER", "GAINED"]
    assert found.cells[0].reason == "incorrect: 24 GB needed"
    overall = found.means[0]
    assert (overall.compared, overall.tried) == (3, 5)
    assert overall.speedup == pytest.approx((1 * 2 / 1.5) ** (1 / 3), rel=0.01)


def test_a_mean_never_mixes_timings_and_says_what_either_side_has_tried():
    before = [sampled(1.0), sampled(4.0, timing="eager"), sampled(1.0, case=LONG)]
    after = [sampled(0.5), sampled(4.0, timing="eager")]
    found = compare(Side(RUN, before), Side(RUN, after))
    assert [(m.timing, m.compared, m.tried) for m in found.means] == [("kernel", 1, 2), ("eager", 1, 1)]
    assert [m.speedup for m in found.means] == pytest.approx([2.0, 1.0])
    assert (found.only_first, found.only_second) == (1, 0)
    before = [sampled(1.0), sampled(1.0, implementation="gone"), sampled(1.0, implementation="gone", mode="bwd")]
    found = compare(Side(RUN, before), Side(replace(RUN, run_id="r2"), [sampled(0.5)]))
    assert [(m.implementation, m.compared, m.tried) for m in found.means] == [(None, 1, 3), ("x", 1, 1)]


def test_what_changed_between_the_runs_is_listed_and_what_nobody_recorded_too():
    other = replace(RUN, run_id="r2", driver="575", kernel_hash=None)
    found = compare(Side(RUN, [sampled(1.0)]), Side(other, [sampled(1.0)]))
    assert [(c.fact, c.first, c.second) for c in found.changes] == [
        ("driver", "570", "575"),
        ("kernel_hash", "aaa", None),
    ]
    assert "torch" in found.not_said
    assert "gpu_name" not in found.not_said
    assert any("No unchanged kernels are in both" in remark for remark in found.remarks)


def test_a_machine_that_ran_at_another_clock_or_reached_less_is_among_the_changes():
    before = [replace(sampled(1.0), sm_clock_mhz=1980.0)]
    after = [replace(sampled(1.1), sm_clock_mhz=1755.0)]
    run = replace(RUN, measured_tflops={"float16": 700.0, "bfloat16": 780.0}, measured_gbs=4200.0)
    other = replace(run, run_id="r2", measured_tflops={"float16": 640.0, "bfloat16": 778.0}, measured_gbs=None)
    assert [(c.fact, c.first, c.second) for c in compare(Side(run, before), Side(other, after)).changes] == [
        ("sm_clock_mhz, median", 1980.0, 1755.0),
        ("measured_tflops float16", 700.0, 640.0),
    ]


def test_two_implementations_of_one_run_are_compared_in_paired_rounds():
    rows = [sampled(1.5, implementation="slow", seed=1), sampled(1.0, implementation="quick", seed=2)]
    found = compare(Side(RUN, rows, "slow"), Side(RUN, rows, "quick"))
    assert [(cell.implementation, cell.outcome) for cell in found.cells] == [("slow -> quick", "FASTER")]
    assert found.cells[0].judgement.basis == "samples and paired thirds"
    assert found.same_run
    assert found.changes == ()


def test_sides_without_a_common_cell_say_which_field_keeps_them_apart():
    published = [timed(1.0, case=replace(small_case(), window_size=None, num_heads=None, num_kv_heads=None))]
    found = compare(Side(RUN, published), Side(RUN, [sampled(1.0)]))
    assert found.cells == ()
    assert found.remarks == (
        "No shape is in both: num_heads not stated and 2; num_kv_heads not stated and 2; window_size not stated and 0.",
    )
    assert compare(Side(RUN, []), Side(RUN, [sampled(1.0)])).remarks == ("The first has no latency.",)


@pytest.mark.parametrize("factor,remarked", [(1.0, False), (0.7, True)])
def test_a_machine_that_was_slower_shows_in_what_did_not_change(factor, remarked):
    run = replace(RUN, torch="2.13.0")
    cases = [replace(small_case(), head_dim=d, head_dim_v=d) for d in (16, 32, 64)]
    before = [sampled(1.0, implementation="torch_naive", case=case) for case in cases]
    after = [sampled(1.0 / factor, implementation="torch_naive", case=case) for case in cases]
    remarks = compare(Side(run, before), Side(replace(run, run_id="r2", kernel_hash="bbb"), after)).remarks
    said = [remark for remark in remarks if "The machine differed" in remark]
    assert bool(said) == remarked
    assert not said or "0.700× as fast in kernel time over 3 shapes" in said[0]
    assert not said or "0 of those are called different" in said[0], "three cannot tell by how much"
    upgraded = compare(Side(run, before), Side(replace(run, run_id="r2", torch="2.14.0"), after))
    assert not any("The machine differed" in remark for remark in upgraded.remarks)


def test_a_machine_that_moved_some_of_what_did_not_change_says_so_though_their_mean_hardly_moved():
    run = replace(RUN, torch="2.13.0")
    cases = [
        replace(small_case(), head_dim=d, head_dim_v=d, seqlen_q=n) for d in (16, 32, 64) for n in (128, 256, 512, 1024)
    ]
    before = [sampled(1.0, implementation="torch_naive", case=case, seed=at) for at, case in enumerate(cases)]
    after = [
        sampled(0.95 if at < 4 else 1.0, implementation="torch_naive", case=case, seed=99 + at)
        for at, case in enumerate(cases)
    ]
    found = compare(Side(run, before), Side(replace(run, run_id="r2"), after))
    assert any("PyTorch's unchanged kernels vary by 3" in remark for remark in found.remarks)
    assert not any(cell.outcome in ("FASTER", "SLOWER") for cell in found.cells)


def test_every_cell_that_either_side_has_tried_is_counted_once_by_timing_and_listed_if_it_has_a_number():
    shared = [sampled(1.0), failed(Status.OOM, mode="bwd"), sampled(1.0, mode="fwd_bwd"), sampled(1.0, timing="eager")]
    before = [*shared, failed(Status.OOM, case=LONG), *(sampled(1.0, case=FULL, mode=mode) for mode in ("fwd", "bwd"))]
    after = [*shared[:2], failed(Status.OOM, mode="fwd_bwd"), sampled(1.0, case=LONG), sampled(1.0, implementation="y")]
    kernel, eager = compare(Side(RUN, before), Side(replace(RUN, run_id="r2"), after)).coverage
    counts = (kernel.both, kernel.lost, kernel.gained, kernel.neither, kernel.only_first, kernel.only_second)
    assert counts == (1, 1, 1, 1, 2, 1)
    assert (eager.timing, eager.both, eager.only_first) == ("eager", 0, 1)
    found = compare(Side(RUN, [failed(Status.OOM)]), Side(RUN, [failed(Status.OOM)]))
    assert found.cells == ()
    assert (found.means[0].compared, found.means[0].tried, found.means[0].speedup) == (0, 1, None)


def test_a_comparison_is_plain_data_too():
    before, after = [sampled(1.0), failed(Status.OOM, mode="bwd")], [sampled(0.5), sampled(1.0, mode="bwd")]
    record = json.loads(json.dumps(as_json(compare(Side(RUN, before), Side(RUN, after)))))
    cells = {cell["outcome"]: cell for cell in record["cells"]}
    assert cells["FASTER"]["speedup"] == pytest.approx(2.0, rel=0.01)
    assert cells["FASTER"]["low"] < 2.0 < cells["FASTER"]["high"]
    assert cells["FASTER"]["seqlen_q"] == 128
    assert (cells["GAINED"]["first_ms"], cells["GAINED"]["first_status"]) == (None, "oom")
    assert set(cells["GAINED"]) == set(cells["FASTER"])


@pytest.fixture
def home(home: Path) -> Path:
    before = [sampled(1.0), sampled(1.0, mode="bwd", seed=3), sampled(3.0, implementation="y", seed=5)]
    after = [sampled(2.0), sampled(0.5, mode="bwd", seed=4), sampled(3.0, implementation="y", seed=6)]
    RunFolder.create(home, RUN, before)
    other = replace(RUN, run_id="r2", driver="575", gpu_name="NVIDIA H100")
    RunFolder.create(home, other, [replace(m, run_id="r2") for m in after])
    return home


def test_the_command_lists_the_regression_first_gives_data_and_takes_implementations(home, capfd):
    assert main(["compare", "r1", "r2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "  driver    570          ->  575" in lines
    verdicts = [line.split()[0] for line in lines[-3:]]
    assert verdicts == ["SLOWER", "UNCLEAR", "FASTER"]
    assert any("kernel" in line and "all" in line and "3 of 3" in line for line in lines)
    assert main(["compare", "r1/y", "r1/x", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert [(c["implementation"], c["outcome"]) for c in record["cells"]] == [("y -> x", "FASTER")]
    assert (record["only_first"], record["only_second"]) == (0, 1)


@pytest.mark.parametrize("sides,answer", cases(__file__, "test_the_command_says_what_is_possible"))
def test_the_command_says_what_is_possible(home, sides, answer, capfd):
    assert main(["compare", *sides]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert answer in err
