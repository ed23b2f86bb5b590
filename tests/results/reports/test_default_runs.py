"""Which runs fill a report best."""

from dataclasses import replace

from results.records import attention_case
from results.reports import side_by_side
from results.reports.default_runs import TriedRun, default_runs
from runner.sweeps.model import model_case

NAME = "fa2_rtx4060"
PRINTED = side_by_side.published(NAME)
MODES = ("fwd", "bwd", "fwd_bwd")
BOTH = ("torch_naive", "triton_fa2")


def run(
    run_id: str,
    created: str,
    *seqlens: int,
    source: str = "local",
    gpu: str = "GPU",
    timed: bool = True,
    **fields: object,
) -> TriedRun:
    """Return a run of both implementations at some lengths of head_dim 64 in bfloat16."""
    sizes = {"batch": 1, "num_heads": 1, "head_dim": 64, "dtype": "bfloat16", "causal": True, **fields}
    tried = frozenset((name, mode, of_memory, timed) for name in BOTH for mode in MODES for of_memory in (False, True))
    cases = {attention_case(seqlen=seqlen, **sizes): tried for seqlen in seqlens}
    return TriedRun(run_id, source, gpu, created, cases)


def test_the_fewest_runs_that_fill_the_most_are_taken_the_fullest_first() -> None:
    found = [run("small", "2026-03", 128), run("large", "2026-01", 128, 256, 512), run("other", "2026-02", 1024)]
    assert default_runs(NAME, PRINTED, found) == ["large", "other"]


def test_of_runs_that_fill_the_same_the_newest_is_taken() -> None:
    found = [run("old", "2026-01", 128, 256), run("new", "2026-02", 128, 256)]
    assert default_runs(NAME, PRINTED, found) == ["new"]


def test_of_gpus_that_fill_the_same_the_one_with_the_most_runs_is_taken_but_the_home_goes_first() -> None:
    measured = [run("once", "2026-03", 128, source="shipped", gpu="A")]
    measured += [run(name, "2026-01", 128, source="shipped", gpu="B") for name in ("first", "again")]
    assert set(default_runs(NAME, PRINTED, measured)) < {"first", "again"}
    assert default_runs(NAME, PRINTED, [*measured, run("own", "2026-01", 128, gpu="A")]) == ["own"]


def test_runs_of_the_home_stand_where_they_fill_as_much_as_those_that_ship() -> None:
    shipped = run("shipped", "2026-03", 128, 256, 512, source="shipped")
    assert default_runs(NAME, PRINTED, [shipped, run("own", "2026-01", 128, 256, 512)]) == ["own"]
    assert default_runs(NAME, PRINTED, [shipped, run("small", "2026-04", 128)]) == ["shipped"]
    assert default_runs(NAME, PRINTED, [shipped, run("small", "2026-04", 128, gpu="CPU")]) == ["shipped"]
    assert default_runs(NAME, PRINTED, [shipped, run("more", "2026-04", 1024)]) == ["more", "shipped"]
    assert default_runs(NAME, PRINTED, [run("elsewhere", "2026-01", 77)]) == []


def test_a_table_of_memory_is_filled_by_the_run_that_has_most_memory() -> None:
    name = "performance_guide"
    sizes = {"batch": 1, "dtype": "bfloat16"}
    cases = {context: model_case("llama2-7b", seqlen=context, **sizes) for context in (2048, 4096)}
    timed, weighed = (frozenset({("gluon_hopper", "prefill", memory, True)}) for memory in (False, True))
    fast = TriedRun("fast", "local", "GPU", "2026-02", dict.fromkeys(cases.values(), timed))
    whole = TriedRun("whole", "local", "GPU", "2026-01", {cases[4096]: timed | weighed})
    assert "whole" in default_runs(name, side_by_side.published(name), [fast, whole])


def test_reasons_for_no_value_give_way_to_values() -> None:
    skipped = run("skipped", "2026-04", 128, 256, 512, 1024, gpu="CPU", timed=False)
    assert default_runs(NAME, PRINTED, [skipped, run("timed", "2026-01", 128, source="shipped")]) == ["timed"]
    assert default_runs(NAME, PRINTED, [skipped]) == ["skipped"]


def test_each_table_has_its_own_gpu() -> None:
    report = "performance_guide"
    shape = {"num_heads": 32, "dtype": "float16", "causal": False}
    a100 = run("a", "2026-01", 512, 1024, batch=8, gpu="A", **shape)
    a10g = run("b", "2026-01", 512, batch=4, gpu="B", **shape)
    assert default_runs(report, side_by_side.published(report), [a100, a10g]) == ["a", "b"]


def test_a_table_is_never_of_two_gpus() -> None:
    found = [
        run("a", "2026-01", 128, gpu="A"),
        run("b", "2026-01", 256, 512, gpu="B"),
        run("b2", "2026-01", 1024, gpu="B"),
    ]
    assert default_runs(NAME, PRINTED, found) == ["b", "b2"]


def test_cases_that_no_report_means_are_left_out() -> None:
    assert default_runs(NAME, PRINTED, [run("window", "2026-01", 128, window_size=64)]) == []


def test_a_run_that_shows_a_feature_is_added() -> None:
    guide, printed = "performance_guide", side_by_side.published("performance_guide")
    shape = {"num_heads": 32, "batch": 8, "dtype": "float16", "causal": False}
    plain = run("plain", "2026-01", 512, **shape)
    windows = replace(run("windows", "2026-01", 512, **shape, window_size=64))
    assert default_runs(guide, printed, [plain, windows]) == ["plain", "windows"]
    assert default_runs(NAME, PRINTED, [run("plain", "2026-01", 128), windows]) == ["plain"]
