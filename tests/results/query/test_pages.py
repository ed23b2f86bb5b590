"""Against the real store, over a home of a few runs with known numbers."""

from dataclasses import replace

import pytest

from results.query import pages, pairing, speedups
from results.records import Case, Measurement, Status
from results.slice import Filters
from tests.builders import add_run, latency, small_case
from tests.cases import named

SLICE = Filters(gpu="A GPU", mode="fwd", timing="kernel", baseline="slow")


def test_speedup_is_missing_when_the_baseline_ran_out_of_memory(home, opened):
    add_run(home, "a", latency("slow", Status.OOM, small_case()), latency("fast", 1.5, small_case()))
    grid = speedups.grid(opened(), SLICE).set_index("implementation")
    assert grid.loc["fast", "latency_ms"] == 1.5
    assert grid["speedup"].isna().all()
    assert grid.loc["fast", "baseline_status"] == "oom"


def _times(**values: float) -> list[Measurement]:
    return [latency(name, value, small_case()) for name, value in values.items()]


@pytest.mark.parametrize(
    "runs, chosen, faster, outdated", named(__file__, "runs of one case, and the one that is shown")
)
def test_of_several_runs_one_is_shown_whole(home, opened, runs, chosen, faster, outdated):
    for run_id, created, code, times in runs:
        add_run(home, run_id, *_times(**times), created=created, kernel_hash=code)
    store = opened()
    grid = speedups.grid(store, SLICE)
    assert {*grid["run_id"]} == {chosen}
    assert dict(zip(grid["implementation"], grid["speedup"], strict=True)) == pytest.approx(faster)
    assert outdated is None or pairing.outdated(store, SLICE) == outdated


def test_code_that_is_measured_again_counts_with_all_its_runs(home, opened):
    add_run(home, "old", *_times(slow=4.0, fast=1.0, other=2.0), created="2026-01-01", kernel_hash="one")
    add_run(home, "new", *_times(slow=4.0, fast=0.5), created="2026-02-01", kernel_hash="two")
    store = opened()
    assert {*speedups.grid(store, SLICE)["run_id"]} == {"new"}
    elsewhere = latency("slow", 1.0, small_case(256))
    add_run(home, "again", elsewhere, created="2026-03-01", kernel_hash="one")
    store.refresh()
    grid = speedups.grid(store, replace(SLICE, seqlen=(128,)))
    assert {*grid["run_id"]} == {"old"}


def test_kernel_and_eager_times_are_never_in_one_slice(home, opened):
    rows = [
        latency(name, value, small_case(), timing=t)
        for name, value, t in [("slow", 8.0, "eager"), ("fast", 1.0, "kernel")]
    ]
    add_run(home, "a", *rows)
    assert speedups.grid(opened(), SLICE)["implementation"].tolist() == ["fast"]


def test_a_timing_the_source_did_not_say_is_a_choice_of_its_own(home, opened):
    add_run(home, "a", latency("slow", 2.0, small_case(), timing=None), latency("slow", 1.0, small_case()))
    store = opened()
    assert set(pages.options(store, "timing", gpu="A GPU")["choice"]) == {"kernel", "as published"}
    published = speedups.grid(store, Filters(gpu="A GPU", mode="fwd", timing="as published", baseline="slow"))
    assert published["latency_ms"].tolist() == [2.0]


def test_what_a_source_left_open_joins_with_the_same_left_open(home, opened):
    case = Case(batch=1, seqlen_q=128, seqlen_k=128, head_dim=64, dtype="float16", causal=True)
    add_run(home, "a", latency("slow", 3.0, case), latency("fast", 1.0, case), latency("fast", 7.0, small_case()))
    ranking = speedups.ranking(opened(), SLICE).set_index("implementation")
    assert ranking.loc["fast", "speedup"] == pytest.approx(3.0)
    assert ranking.loc["fast", "compared"] == 1


@pytest.mark.parametrize("other,dtype", [("fast_tf32", "float32"), ("fast_fp8", "bfloat16")])
def test_another_precision_is_ranked_and_marked(home, opened, other, dtype):
    case = small_case(dtype=dtype)
    add_run(home, "a", latency("slow", 3.0, case), latency("fast", 1.5, case), latency(other, 0.5, case))
    store = opened()
    assert speedups.ranking(store, SLICE).set_index("implementation")["precision"].to_dict() == {
        "fast": None,
        other: other.removeprefix("fast_"),
        "slow": None,
    }


def test_ranking_counts_coverage_and_each_kind_of_failure(home, opened):
    rows = [latency("slow", 2.0, small_case(n)) for n in (128, 256, 512)]
    rows += [latency("fast", 1.0, small_case(128)), latency("fast", Status.OOM, small_case(256))]
    rows += [latency("fast", Status.SKIPPED, small_case(512))]
    add_run(home, "a", *rows)
    fast = speedups.ranking(opened(), SLICE).set_index("implementation").loc["fast"]
    assert (fast["compared"], fast["cases"], fast["failures"], fast["oom"], fast["skipped"]) == (1, 3, 1, 1, 1)
    assert (fast["longest"], fast["first_oom"]) == (128, 256)


def test_a_sweep_that_divides_a_budget_is_one_shape(home, opened):
    rows = [latency("slow", 1.0, small_case(128, batch=8)), latency("slow", 1.0, small_case(256, batch=4))]
    add_run(home, "a", *rows, sweep={"tokens": 1024, "hidden": 128})
    assert pages.options(opened(), "shape", gpu="A GPU")["choice"].tolist() == ["1024 tokens, hidden 128"]


def test_memory_reduction_is_within_one_run(home, opened):
    def memory(name: str, value: float) -> Measurement:
        return latency(name, value, small_case(), metric="peak_memory_mb", timing=None)

    add_run(home, "a", memory("slow", 800.0), memory("fast", 100.0), created="2026-01-01")
    add_run(home, "b", memory("fast", 1.0), created="2026-02-01")
    table = pages.memory(opened(), SLICE, "peak_memory_mb").set_index("implementation")
    assert table.loc["fast", "reduction"] == 8.0


def test_the_device_with_most_numbers_comes_first_and_a_processor_last(home, opened):
    many = [latency("slow", 1.0, small_case(n)) for n in (128, 256, 512)]
    add_run(home, "cpu", *many, gpu_name="A processor", device_type="cpu")
    add_run(home, "small", *many[:1], gpu_name="B GPU", device_type="cuda")
    add_run(home, "large", *many[:2], gpu_name="C GPU", device_type="cuda")
    assert pages.gpus(opened())["gpu"].tolist() == ["C GPU", "B GPU", "A processor"]


def test_values_of_filters_never_become_sql(home, opened):
    add_run(home, "a", latency("slow", 1.0, small_case()))
    nasty = "'); DROP TABLE runs; --"
    store = opened()
    assert speedups.grid(store, Filters(gpu=nasty, run=(nasty,), baseline=nasty, implementation=(nasty,))).empty
    assert len(pages.runs(store)) == 1


def test_the_detail_of_a_cell_holds_samples_flops_and_the_run(home, opened):
    row = latency("slow", 1.0, small_case(), samples=(1.0, 2.0), flags=("throttled",))
    add_run(home, "a", row, command="python -m runner run quick")
    found = pages.cell(opened(), SLICE, "float16", 128, 64).iloc[0]
    assert list(found["samples"]) == [1.0, 2.0]
    assert found["flops"] == 4 * 2 * 64 * (128 * 129 / 2)
    assert found["command"] == "python -m runner run quick"


def test_a_run_is_of_the_level_gpu_and_subject_of_most_of_its_latencies(home, opened):
    step = Case(level="model", subject="gpt2", batch=1, seqlen_q=1, seqlen_k=128)
    add_run(
        home, "a", *(latency(name, 2.0, step, mode="decode") for name in ("x", "y")), latency("x", 1.0, small_case())
    )
    add_run(home, "nothing", latency("x", Status.OOM, small_case()))
    store = opened()
    assert pages.most_of_run(store, "a") == ("model", "A GPU", "gpt2")
    assert pages.most_of_run(store, "nothing") is None


def test_cases_with_features_are_a_workload_of_their_own_and_a_filter_finds_them(home, opened):
    plain, capped = small_case(), small_case(features="softcap=50,sinks")
    add_run(
        home, "a", *(latency(name, ms, case) for case, ms in ((plain, 3.0), (capped, 9.0)) for name in ("slow", "fast"))
    )
    store = opened()
    assert pages.options(store, "workload", gpu="A GPU")["choice"].tolist() == [
        "attention",
        "attention with softcap=50,sinks",
    ]
    for features, times in (((), [27.0**0.5]), (("sinks",), [9.0]), (("softcap", "sinks"), [9.0]), (("alibi",), [])):
        grid = speedups.grid(store, replace(SLICE, features=features))
        assert sorted({*grid["latency_ms"]}) == pytest.approx(times)
    assert [*speedups.grid(store, replace(SLICE, workload="attention"))["latency_ms"]] == pytest.approx([3.0, 3.0])
