"""Why cells of a report are open, and the commands that measure them."""

import shlex

import pytest

from results import reports
from results.records import Measurement, Run, Status, layer_case
from results.reports import side_by_side
from results.reports.coverage import command_of
from results.reports.own import all_facts, case_fields
from results.reports.rendering import printed_rows
from runner import sweeps


def measured(command: str) -> sweeps.Sweep:
    """Return the sweep that a command runs."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "runner", "run"]
    sets = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    return sweeps.override(sweeps.get(words[4]), sweeps.changes_of(sets))


@pytest.mark.parametrize("name", reports.names())
def test_the_command_of_every_table_plans_every_cell_of_it(name: str) -> None:
    printed, report = side_by_side.published(name), reports.get(name)
    tables = [grid for grid in reports.get(name).grids if grid.measured_by]
    assert [grid.section for grid in reports.get(name).grids if not grid.measured_by] in ([], ["Shared memory"])
    for grid in tables:
        facts = [each for labels in printed_rows(grid, printed) for each in all_facts(grid, labels)]
        cases = measured(command_of(grid, facts, report.implementations.values())).cases()
        for each in facts:
            fields = case_fields(each)
            planned = (case for case in cases if all(getattr(case, field) == said for field, said in fields.items()))
            assert any(planned), f"{grid.section}: {fields}"


def _gaps(*implementations: str) -> dict[str, str]:
    """Return the gaps of a table of layers, of a run with the times of one layer's forward."""
    shape = {"batch": 2, "seqlen": 2048, "num_heads": 16, "num_kv_heads": 1, "head_dim": 64}
    case = layer_case("mqa", **shape, latent_dim=0, dtype="bfloat16", causal=False)
    own = [
        Measurement("r", case, name, "latency_ms", Status.OK, "fwd", "kernel", value=1.0, statistic="median", n=9)
        for name in implementations
    ]
    name = "attention_layers_a100"
    found = side_by_side.sections(name, side_by_side.published(name), [(Run("r", "local"), own)])
    section = next(each for each in found if each.title.startswith("Multi-Query Attention (MQA) > Configuration 1"))
    return {gap.words: gap.command for gap in section.gaps}


def test_a_gap_says_whether_the_shape_or_an_implementation_is_missing() -> None:
    found = _gaps("torch_naive", "triton_fa2")
    assert list(found) == [
        "Flash (ms) of Forward: r has the shape without torch_sdpa_flash",
        "PyTorch (ms), Triton (ms), Flash (ms) of Backward, Total: no run has the shape",
    ]
    assert set(found.values()) == {
        "python -m runner run attention_layers --set subject=mqa --set batch=2 --set seqlen=2048 --set heads=16 "
        "--set head_dim=64 --implementations torch_naive,triton_fa2,torch_sdpa_flash"
    }


def test_the_command_measures_whole_rows_as_a_row_is_of_one_run() -> None:
    name = "flashtile_a100"
    case = next(case for case in sweeps.get("flashtile").cases() if case.subject == "mha_fused_bias")
    own = [Measurement("r", case, "tiled_v1", "latency_ms", Status.OK, "fwd", "eager", value=1.0, statistic="median")]
    found = side_by_side.sections(name, side_by_side.published(name), [(Run("r", "local"), own)])
    commands = [gap.command for section in found for gap in section.gaps if "GQA of 256" in gap.words]
    assert ["--set subject=mha_fused_bias,gqa_bias --set seqlen=256," in command for command in commands] == [True]


def test_a_model_that_does_not_fit_the_gpu_is_told_apart() -> None:
    name, case = "performance_guide", sweeps.get("performance_guide").cases()[0]
    own = [Measurement("r", case, "torch_naive", "latency_ms", Status.OK, "fwd", "kernel", value=1.0, statistic="mean")]
    run = Run("r", "local", gpu_memory_mb=140 * 1024.0)
    found = side_by_side.sections(name, side_by_side.published(name), [(run, own)])
    models = next(section for section in found if section.title.startswith("Llama 2 models"))
    large = "without checkpointing by formula more than the 140 GiB of the GPU with"
    words = {gap.words: gap.command for gap in models.gaps}
    assert f"Standard (samples/sec) of Llama 2 13B 13B, Llama 2 70B 70B: {large} torch_naive" in words
    of_70b = measured(words[f"Flash Attn (samples/sec) of Llama 2 70B 70B: {large} gluon_hopper"])
    assert of_70b.extrapolates
    assert of_70b.subject == ("llama2-7b", "llama2-13b", "llama2-70b"), "7B fits: it shows how good the method is"
    memory = next(section for section in found if section.title.startswith("Training memory"))
    assert not any(measured(gap.command).extrapolates for gap in memory.gaps), "memory is not extrapolated"


def test_the_report_beside_a_run_tells_its_gaps_under_the_table() -> None:
    name = "performance_guide"
    case = sweeps.get(name).cases()[0]
    own = [Measurement("r", case, "torch_naive", "latency_ms", Status.OK, "fwd", "kernel", value=1.0, statistic="mean")]
    text = side_by_side.render(name, side_by_side.published(name), [(Run("r", "local"), own)])
    assert "- Not measured: Standard (tokens/sec), Flash Attn (tokens/sec) of 512, 2K, 4K, 8K, 16K: " in text
    assert "`python -m runner run generation --set subject=llama2-7b --set context=512,2048,4096,8192,16384" in text
