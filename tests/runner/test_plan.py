"""What a sweep plans: which cells, in which order, what speaks against them, and what they may cost."""

import dataclasses

import pytest

from kernels import registry
from results import levels
from results.records import CASE_FIELDS, Status, attention_case
from runner import plan, sweeps
from runner.cells import (
    Cell,
    cell_from_json,
    cell_to_json,
    estimated_memory_mb,
    estimated_seconds,
    ordered_cells,
    without_number,
)
from runner.machine.devices import DeviceInfo, resolve
from runner.protocol import PROTOCOLS

CPU = DeviceInfo("cpu", "cpu", "a processor", "cpu")
GPU = registry.Device(type="cuda", name="a GPU", compute_capability=(9, 0))
STANDARD = PROTOCOLS["standard"]
CASES = tuple(
    attention_case(batch=1, num_heads=1, seqlen=n, head_dim=64, dtype="float32", causal=True) for n in (128, 256, 512)
)


def case(**changes):
    shape = {"batch": 1, "num_heads": 1, "seqlen": 1024, "head_dim": 64, "dtype": "float32", "causal": True}
    return attention_case(**shape | changes)


def test_cells_are_every_combination_case_by_case_shuffled_within_each_by_the_seed() -> None:
    cells = ordered_cells(CASES, ("a", "b", "c"), ("fwd", "bwd"), seed=0)
    assert len(cells) == len(set(cells)) == 18
    assert [cell.case for cell in cells[::6]] == list(CASES)
    assert [cell.mode for cell in cells[:2]] == ["fwd", "bwd"]
    names = tuple("abcdefgh")
    orders = [
        tuple(c.implementation for c in ordered_cells(CASES, names, ("fwd",), seed)[start : start + 8])
        for seed in (0, 1)
        for start in (0, 8, 16)
    ]
    assert len(set(orders)) == 6
    assert ordered_cells(CASES, names, ("fwd",), 1) == ordered_cells(CASES, names, ("fwd",), 1)


def test_a_plan_names_the_reason_against_each_cell_that_cannot_run_or_that_a_model_has_not() -> None:
    sweep = dataclasses.replace(sweeps.get("quick"), seqlen=(128,), implementations=("torch_naive", "torch_sdpa_cudnn"))
    cells = plan.plan(sweep, CPU, STANDARD, seed=0)
    reasons = {(cell.implementation, cell.reason) for cell in cells}
    assert reasons == {("torch_naive", None), ("torch_sdpa_cudnn", "torch_sdpa_cudnn runs on cuda, not on cpu.")}
    assert all((cell.seconds == 0) == bool(cell.reason) for cell in cells)
    changes = {"subject": "gpt2", "context": "1024,2048"}
    generation = dataclasses.replace(
        sweeps.override(sweeps.get("generation"), changes), implementations=("triton_step",), batch=(1,)
    )
    reasons = {cell.case.seqlen_k: cell.reason for cell in plan.plan(generation, CPU, STANDARD, seed=0)}
    assert reasons == {
        1024: "triton_step takes models of llama and mistral, GPT-2 (124M) is gpt2.",
        2048: "GPT-2 (124M) has 1024 positions, the case has 2048 tokens.",
    }


def test_a_cpu_times_plain_calls_where_a_sweep_asks_for_device_time_alone() -> None:
    generation, both = sweeps.get("generation"), sweeps.get("quick")
    assert plan.timed_on(generation, "cpu").timings == ("eager",)
    assert plan.timed_on(generation, "cuda") is generation
    assert plan.timed_on(both, "cpu") is both


def test_an_implementation_without_backward_says_so(monkeypatch) -> None:
    forward_only = dataclasses.replace(registry.get("torch_naive"), name="forward_only", backward=False)
    monkeypatch.setattr(registry, "implementations", lambda level: {"forward_only": forward_only})
    sweep = dataclasses.replace(sweeps.get("quick"), seqlen=(128,), implementations=("forward_only", "gone"))
    reasons = {(c.implementation, c.mode): c.reason for c in plan.plan(sweep, CPU, STANDARD, seed=0)}
    assert reasons["forward_only", "fwd"] is None
    assert reasons["forward_only", "bwd"] == reasons["forward_only", "fwd_bwd"] == "forward_only has no backward pass."
    assert reasons["gone", "fwd"] == "gone is not part of this checkout."


def test_an_unknown_implementation_or_device_is_refused_with_those_that_exist() -> None:
    with pytest.raises(plan.Refused, match="Unknown implementation 'fa2'. Available: .*torch_naive"):
        plan.chosen(sweeps.get("quick"), ("fa2",))
    with pytest.raises(plan.Refused, match="Unknown device 'cuda:99'. Available: .*cpu"):
        resolve("cuda:99")


def test_a_feature_leaves_implementations_that_declare_it_or_says_which_do() -> None:
    sweep = dataclasses.replace(sweeps.get("quick"), implementations=("torch_naive", "torch_flex", "triton_fa2"))
    assert plan.chosen(sweep, None, ("window", "head_dim_v")).implementations == sweep.implementations
    assert plan.chosen(sweep, None, ("head_dim_v", "dropout")).implementations == ("torch_naive", "triton_fa2")
    with pytest.raises(plan.Refused, match="quick declares dropout. Of level op these do: torch_naive,"):
        plan.chosen(sweep, ("torch_flex",), ("dropout",))
    with pytest.raises(plan.Refused, match="Unknown feature soft_cap. Possible: causal, window"):
        plan.chosen(sweep, None, ("soft_cap",))


def test_tiles_adds_the_forms_of_each_case_and_mode(monkeypatch) -> None:
    def listed(names, case, mode, device):
        return [f"{name}[{case.seqlen_q} {mode}]" for name in names if mode == "fwd"]

    monkeypatch.setattr(plan.forms, "of_case", listed)
    monkeypatch.setattr(plan, "_reason_against", lambda case, name, target: None)
    sweep = dataclasses.replace(sweeps.get("quick"), seqlen=(128, 256), modes=("fwd", "fwd_bwd"))
    sweep = plan.chosen(dataclasses.replace(sweep, implementations=("tiles",)), ("torch_naive", "triton_fa2"))
    assert sweep.implementations == ("torch_naive", "triton_fa2", "triton_fa2[128 fwd]", "triton_fa2[256 fwd]")
    cells = plan.plan(plan.chosen(sweep, None), CPU, STANDARD, seed=0)
    where = {(c.implementation, c.case.seqlen_q, c.mode) for c in cells if "[" in c.implementation}
    assert where == {(f"triton_fa2[{n} fwd]", n, "fwd") for n in (128, 256)}


def test_the_interpreter_checks_small_cases_only() -> None:
    small, large = (Cell(case(seqlen=n), "triton_fa2", "fwd") for n in (256, 4096))
    assert plan.interpreter_reason(small) is None
    assert "would take about" in plan.interpreter_reason(large)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_larger_cases_are_expected_to_take_longer_and_more_memory(mode: str) -> None:
    cases = [case(seqlen=n) for n in (1024, 8192, 65536)]
    for target in (GPU, registry.describe_device("cpu")):
        seconds = [estimated_seconds(c, mode, STANDARD, 2, target, matrix=True) for c in cases]
        assert seconds == sorted(seconds) and seconds[2] > 10 * seconds[0]
    linear, matrix = ([estimated_memory_mb(c, mode, {"growth": g}) for c in cases] for g in ("linear", "matrix"))
    assert matrix[2] / matrix[1] == pytest.approx(64, rel=0.1)
    assert linear[2] / linear[1] == pytest.approx(8, rel=0.1)


def test_a_short_case_is_expected_to_cost_its_overhead_and_a_faster_memory_to_decode_faster() -> None:
    assert 0.1 < estimated_seconds(case(seqlen=128, dtype="bfloat16"), "fwd", STANDARD, 2, GPU, matrix=False) < 1.0
    assert STANDARD.seconds(5.0, 2) == 5.0 * (4 + 6 * 2), "a check, and three rounds of two samples in both timings"
    assert PROTOCOLS["sustained"].seconds(0.0, 1) == 30.0
    long = max(sweeps.get("decode").cases(), key=lambda case: levels.bytes_moved(case, "decode"))
    unknown, known = (dataclasses.replace(GPU, name=name) for name in ("a GPU", "NVIDIA H200"))
    slow, fast = (estimated_seconds(long, "decode", STANDARD, 2, target, matrix=False) for target in (unknown, known))
    assert fast < slow / 2


def test_a_cache_larger_than_the_device_is_out_of_memory_before_it_is_made(monkeypatch) -> None:
    small = registry.Device(type="cpu", name="CPU", memory_bytes=2**20)
    monkeypatch.setattr(registry, "describe_device", lambda device: small)
    sweep = dataclasses.replace(
        sweeps.get("decode"), context=(128, 8192), batch=(1,), heads=("8/2",), implementations=("torch_naive",)
    )
    fates = {cell.case.seqlen_k: cell for cell in plan.plan(sweep, CPU, STANDARD, 0)}
    assert fates[128].reason is None
    refused = fates[8192]
    assert (refused.reason_status, refused.seconds) == (Status.OOM, 0.0)
    assert refused.reason.startswith("Out of device memory: inputs and results need ")


def test_a_cell_survives_the_way_through_json() -> None:
    for features in (None, "softcap=50,sinks"):
        of = dataclasses.replace(case(), features=features)
        cell = Cell(of, "torch_naive", "bwd", reason="why", seconds=1.5, memory_mb=None)
        record = cell_to_json(cell)
        assert ({*CASE_FIELDS} - {"features"} < {*record}) and ("features" in record) == bool(features)
        assert cell_from_json(record) == cell


def test_a_cell_without_a_number_has_a_row_for_each_timing_or_for_the_errors_of_its_pass() -> None:
    rows = without_number("run", Cell(case(), "a", "fwd"), ("kernel", "eager"), Status.OOM, "too large")
    assert [(row.timing, row.status, row.note, row.value) for row in rows] == [
        ("kernel", Status.OOM, "too large", None),
        ("eager", Status.OOM, "too large", None),
    ]
    for mode, owed in (("fwd", ["error_out"]), ("bwd", ["error_dq", "error_dk", "error_dv"])):
        rows = without_number("r", Cell(CASES[0], "x", mode), (), Status.ERROR, "why")
        assert [(row.metric, row.timing) for row in rows] == [(metric, None) for metric in owed]


def test_another_projects_package_takes_part_where_it_is_installed_or_named(monkeypatch) -> None:
    sweep = dataclasses.replace(sweeps.get("quick"), implementations=("torch_naive", "flash_attn_4"))
    peer, existing = registry.get("flash_attn_4"), registry.implementations()
    for unavailable, expected in ((None, ("torch_naive", "flash_attn_4")), ("not installed", ("torch_naive",))):
        known = {**existing, peer.name: dataclasses.replace(peer, unavailable=unavailable)}
        monkeypatch.setattr(registry, "implementations", lambda level, known=known: known)
        assert plan.chosen(sweep, None).implementations == expected
        assert plan.chosen(sweep, ("flash_attn_4",)).implementations == ("flash_attn_4",)


def test_a_cpu_expects_no_time_for_errors_of_long_rows() -> None:
    sweep = sweeps.get("accuracy")
    sweep = dataclasses.replace(sweep, head_dim=(64,), dtype=("float32",), implementations=("torch_naive",))
    cells = plan.plan(sweep, CPU, STANDARD, 0)
    assert {cell.case.seqlen_q for cell in cells if not cell.seconds} == {16384}
    assert {cell.case.inputs for cell in cells} == {"normal", "outliers", "large", "heavy_tails"}


@pytest.mark.parametrize("level", registry.FOLDERS)
def test_every_implementation_takes_part_in_a_sweep_of_its_level_and_no_sweep_names_another(level: str) -> None:
    named = {name for sweep in sweeps.SWEEPS.values() if sweep.level == level for name in sweep.implementations}
    assert named == set(registry.implementations(level))
