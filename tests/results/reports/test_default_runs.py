"""Which runs fill a report best."""

import pytest

from results.records import attention_case
from results.reports import side_by_side
from results.reports.default_runs import TriedRun, default_runs
from runner.sweeps.model import model_case
from tests.cases import named

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


@pytest.mark.parametrize("report, made, best", named(__file__, "runs, and those that fill a report best"))
def test_the_runs_that_fill_a_report_best_are_taken(report, made, best) -> None:
    found = [run(run_id, created, *seqlens, **fields) for run_id, created, seqlens, fields in made]
    assert tuple(default_runs(report, side_by_side.published(report), found)) == best


def test_of_gpus_that_fill_the_same_the_one_with_the_most_runs_is_taken() -> None:
    measured = [run("once", "2026-03", 128, source="shipped", gpu="A")]
    measured += [run(name, "2026-01", 128, source="shipped", gpu="B") for name in ("first", "again")]
    assert set(default_runs(NAME, PRINTED, measured)) < {"first", "again"}


def test_a_table_of_memory_is_filled_by_the_run_that_has_most_memory() -> None:
    name = "performance_guide"
    sizes = {"batch": 1, "dtype": "bfloat16"}
    cases = {context: model_case("llama2-7b", seqlen=context, **sizes) for context in (2048, 4096)}
    timed, weighed = (frozenset({("gluon_hopper", "prefill", memory, True)}) for memory in (False, True))
    fast = TriedRun("fast", "local", "GPU", "2026-02", dict.fromkeys(cases.values(), timed))
    whole = TriedRun("whole", "local", "GPU", "2026-01", {cases[4096]: timed | weighed})
    assert "whole" in default_runs(name, side_by_side.published(name), [fast, whole])
