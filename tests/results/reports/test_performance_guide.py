"""Report performance_guide filled from own runs: every table, claim, feature and recommendation."""

from __future__ import annotations

import pytest

from results import capabilities, reports
from results.__main__ import main
from results.files.journal import RunFolder
from results.levels.model_table import model
from results.records import Case, Measurement, Run, Status
from results.reports import side_by_side
from results.reports.coverage import coverage
from results.reports.layout import Remark, Section
from runner.sweeps import SWEEPS

H200 = "NVIDIA H200"
DECLARED = {"causal": True, "window": True, "gqa": True, "paged": False, "precision": None, "family": "own"}
OF_OPS = Run(
    "ops",
    "local",
    gpu_name=H200,
    implementations={
        "torch_naive": {**DECLARED, "memory": {"growth": "matrix", "fwd": {"matrices": 2}}},
        "flash_attn_1": {**DECLARED, "gqa": False, "window": False, "memory": {"growth": "linear"}},
        "triton_fa2": {**DECLARED, "memory": {"growth": "linear", "fwd": {"numbers": 1}}},
        "gluon_hopper": DECLARED,
        "gluon_fp8": {**DECLARED, "precision": "fp8"},
    },
)
OF_MODELS = Run("models", "local", gpu_name=H200, implementations={"triton_split_kv": {**DECLARED, "paged": True}})
# microseconds a token and head-batch, and MiB a token
OP_SPEEDS = {"torch_naive": 8.0, "flash_attn_1": 4.0, "triton_fa2": 2.0, "gluon_hopper": 1.0, "gluon_fp8": 0.5}


def ops() -> list[Measurement]:
    found = []
    for case in SWEEPS["performance_guide"].cases():
        for name, speed in OP_SPEEDS.items():
            if name == "torch_naive" and case.seqlen_q == 32768:
                skipped = {"status": Status.SKIPPED, "note": "needs 512 GiB of 139.8"}
                found.append(
                    Measurement(OF_OPS.run_id, case, name, "latency_ms", mode="fwd", timing="kernel", **skipped)
                )
                continue
            work = case.batch * case.seqlen_q * case.seqlen_q / 1024 / 1000
            found.append(number(OF_OPS, case, name, "fwd", "latency_ms", speed * work, "kernel"))
            memory = case.batch * case.seqlen_q / (4 if name != "torch_naive" else 1)
            found.append(number(OF_OPS, case, name, "fwd", "peak_memory_mb", memory))
    return found


def number(run: Run, case: Case, name: str, mode: str, metric: str, value: float, timing: str | None = None):
    return Measurement(run.run_id, case, name, metric, Status.OK, mode, timing, value=value, statistic="median", n=9)


def of_model(subject: str, batch: int, seqlen: int, **fields) -> Case:
    config = model(subject)
    sizes = {"num_heads": config.heads, "num_kv_heads": config.kv_heads, "head_dim": config.head_dim}
    given = {"seqlen_q": seqlen, "optimizer": "none", "checkpointing": False, "compiled": True} | fields
    return Case(
        level="model",
        subject=subject,
        batch=batch,
        seqlen_k=seqlen,
        head_dim_v=config.value_dim,
        dtype="bfloat16",
        causal=True,
        window_size=0,
        page_size=0,
        latent_dim=0,
        num_layers=config.layers,
        **sizes,
        **given,
    )


def models() -> list[Measurement]:
    """Generation twice, prefill three times and training two and a half times as fast with ours."""
    found = []
    for context in (512, 2048, 4096, 8192, 16384, 32768):
        case = of_model("llama2-7b", 1, context)
        for name, ms, mb in (("torch_naive", 3.0, 2.0), ("triton_fa2", 1.0, 1.0)):
            found.append(number(OF_MODELS, case, name, "prefill", "latency_ms", ms * context / 100, "kernel"))
            found.append(number(OF_MODELS, case, name, "prefill", "peak_memory_mb", 14000 + mb * context))
        step = of_model("llama2-7b", 1, context, seqlen_q=1)
        for name, ms in (("torch_naive", 10.0), ("triton_split_kv", 5.0)):
            found.append(number(OF_MODELS, step, name, "decode", "latency_ms", ms, "kernel"))
    for subject in ("gpt2", "gpt-j-6b", "gpt-neox-20b"):
        step = of_model(subject, 1, 1024, seqlen_q=1)
        for name, ms in (("torch_naive", 10.0), ("triton_split_kv", 5.0)):
            found.append(number(OF_MODELS, step, name, "decode", "latency_ms", ms, "kernel"))
    for batch, seqlen in ((4, 2048), (8, 2048), (4, 4096), (8, 4096), (2, 8192), (4, 8192)):
        case = of_model("llama2-7b", batch, seqlen, optimizer="adamw_bf16")
        found += training(case)
    found += training(of_model("llama2-13b", 4, 2048, optimizer="adamw_bf16"))
    whole = of_model("llama2-70b", 4, 2048, optimizer="adamw_bf16")
    for name, ms in (("torch_naive", 20000.0), ("triton_fa2", 8000.0)):
        skipped = {"status": Status.SKIPPED, "note": "needs 1064.5 GiB of 139.8"}
        found.append(Measurement(OF_MODELS.run_id, whole, name, "latency_ms", mode="train", timing="eager", **skipped))
        found.append(number(OF_MODELS, whole, name, "train", "latency_extrapolated_ms", ms, "eager"))
    return found


def training(case: Case) -> list[Measurement]:
    tokens = case.batch * case.seqlen_q
    return [
        made
        for name, ms, mb in (("torch_naive", 2.5, 3.0), ("triton_fa2", 1.0, 1.0))
        for made in (
            number(OF_MODELS, case, name, "train", "latency_ms", ms * tokens / 10, "eager"),
            number(OF_MODELS, case, name, "train", "peak_memory_mb", 40000 + mb * tokens),
        )
    ]


@pytest.fixture(scope="module")
def sections() -> dict[str, Section]:
    printed = side_by_side.published("performance_guide")
    runs = [(OF_OPS, ops()), (OF_MODELS, models())]
    return {section.title: section for section in side_by_side.sections("performance_guide", printed, runs)}


def test_every_table_has_an_own_number_in_every_cell_that_prints_one(sections):
    grids = {grid.section: grid for grid in reports.get("performance_guide").grids}
    assert set(grids) <= set(sections)
    for title, grid in grids.items():
        words = {name for name, column in grid.columns.items() if isinstance(column, Remark) and not column.own}
        for row in sections[title].rows:
            assert row.own, f"{title}: nothing of {row.labels}"
            empty = {name for name, cell in zip(sections[title].columns, row.own, strict=True) if not cell}
            assert empty <= words, f"{title}, {row.labels}: {empty}"


def row_of(section: Section, *labels: str) -> dict[str, str]:
    row = next(row for row in section.rows if row.labels == labels)
    return dict(zip(section.columns, row.own, strict=True))


def test_attention_by_version_is_measured_on_one_gpu(sections):
    title = "Flash Attention 1 vs 2 vs 3 (H100, seq=4096, batch=8)"
    times = row_of(sections[title], "Forward time (ms)")
    unit = 8 * 4096 * 4096 / 1024 / 1000
    assert times == {name: f"{speed * unit:.4f}" for name, speed in zip(times, (4, 2, 1, 0.5), strict=True)}
    flops = 4 * 8 * 32 * 4096**2 * 64
    assert row_of(sections[title], "TFLOPS")["FA2"] == f"{flops / (2 * unit) / 1e9:.4g}"
    share = row_of(sections[title], "GPU util %")
    assert share["FA3 (FP8)"] == f"{100 * flops / (0.5 * unit) / 1e9 / 1979:.4g}", "of the FP8 peak"


def test_attention_matrix_and_cache_stand_beside_the_measured_total(sections):
    title = "GPU memory consumption (batch=8, heads=32, dim=64) > Standard attention memory"
    row = row_of(sections[title], "2048")
    assert row["Attention Matrix"] == "4096.0 MB"
    assert row["KV Cache"] == "128.0 MB"
    assert row["Total"] == "16384.0 MB"


def test_what_was_not_run_says_what_it_needs(sections):
    title = "GPU memory consumption (batch=8, heads=32, dim=64) > Standard attention memory"
    row = row_of(sections[title], "32768")
    assert row["Total"] == "— (needs 512 GiB of 139.8)"
    assert row["Attention Matrix"] == f"{2 * 8 * 32 * 32768**2 * 2 / 2**20:.1f} MB"


def test_a_speedup_is_baseline_over_implementation(sections):
    forward = "A100 80GB (Ampere) > Forward pass time (milliseconds, batch=8, heads=32, dim=64)"
    assert row_of(sections[forward], "8192")["Speedup (FA2)"] == "4.0x"


def test_models_are_rates_derived_from_times(sections):
    title = "Training (forward + backward, Llama 2 7B, A100)"
    row = row_of(sections[title], "4 × 2K")
    assert row["Flash Attn (samples/sec)"] == f"{4 / (0.1 * 8192 / 1000):.4g}"
    assert row["Speedup"] == "2.5x"
    generation = row_of(sections["Inference (generation, Llama 2 7B, A100)"], "16K")
    assert (generation["Standard (tokens/sec)"], generation["Flash Attn (tokens/sec)"]) == ("100", "200")


def test_an_extrapolated_cell_says_so_and_has_no_speedup(sections):
    row = row_of(sections["Llama 2 models (A100 80GB, batch=4, seq=2048)"], "Llama 2 70B", "70B")
    assert row["Flash Attn (samples/sec)"] == "≈ 0.5"
    assert row["Speedup"] == "—"


def test_twenty_four_gigabytes_are_judged_by_formula(sections):
    title = "Memory scaling comparison > Llama 2 7B model memory (float16, batch=1)"
    assert row_of(sections[title], "2K")["Can Fit 24GB GPU?"] == "by formula both: yes"
    assert row_of(sections[title], "16K")["Can Fit 24GB GPU?"] == "by formula only Flash: yes"
    assert row_of(sections[title], "32K")["Can Fit 24GB GPU?"] == "by formula both: no"


def test_claims_are_answered_from_the_numbers(sections):
    own = {row.labels[0]: row.own and row.own[0] for row in sections["Claims"].rows}
    assert own["Key improvements / FA2"] == "2.00x (1 case)"
    assert own["Key improvements / FA3 (FP8)"] == "4.00x (1 case)"
    assert own["Recommendations by use case / training"] == "2.50x (7 training cases)"
    assert own["Recommendations by use case / long context"] == "2.00x (3 long steps), 3.00x (3 long prompts)"
    assert own["Recommendations by use case / short sequences"] == "4.00x (3 forward cases)"
    assert own["H100 80GB (Hopper) / Key insight"].endswith("% of the datasheet's peak) at seqlen 512")
    assert all(own.values())


def test_a_feature_ran_or_is_declared_or_its_absence_is(sections):
    section = sections["Features by version"]
    basic = row_of(section, "Basic attention")
    assert basic == {
        "FA1": "ran: flash_attn_1",
        "FA2": "ran: triton_fa2, triton_split_kv",
        "FA3": "ran: gluon_hopper, gluon_fp8, triton_split_kv",
    }
    queries = row_of(section, "Multi-query attention")
    assert (queries["FA1"], queries["FA2"]) == ("no", "declared: triton_fa2, triton_split_kv")
    assert row_of(section, "Paged KV cache")["FA2"] == "declared: triton_split_kv", "by the other run"
    assert row_of(section, "FP8 support") == {"FA1": "no", "FA2": "no", "FA3": "ran: gluon_fp8"}
    assert row_of(section, "Work partitioning")["FA3"] == "4.00x the speed of FA1 (1 case)"
    assert section.runs == (), "of all runs together"


def test_a_feature_that_nobody_tried_or_declares_is_left_open():
    run, case = Run("bare", "local", gpu_name=H200), SWEEPS["performance_guide"].cases()[0]
    own = [number(run, case, "triton_fa2", "fwd", "latency_ms", 1.0, "kernel")]
    found = side_by_side.sections("performance_guide", side_by_side.published("performance_guide"), [(run, own)])
    section = next(section for section in found if section.title == "Features by version")
    assert row_of(section, "Basic attention") == {"FA1": "", "FA2": "ran: triton_fa2", "FA3": ""}
    assert next(row for row in section.rows if row.labels == ("Sliding window",)).own is None


def test_features_that_were_checked_stand_in_a_table_of_their_own_that_is_none_of_the_reports(monkeypatch):
    of_gpus = {"H100": {"triton_fa2": {"softcap": {"errors": {"float16": 0.5}}, "sinks": {"errors": {"float16": 1.5}}}}}
    of_gpus["H200"] = of_gpus["H100"] | {"gluon_hopper": {"softcap": "gluon_hopper does not support softcaps."}}
    record = {gpu: {"environment": {}, "implementations": found} for gpu, found in of_gpus.items()}
    monkeypatch.setattr(capabilities, "record", lambda: record)
    run, case = Run("bare", "local", gpu_name=H200), SWEEPS["performance_guide"].cases()[0]
    own = [number(run, case, "triton_fa2", "fwd", "latency_ms", 1.0, "kernel")]
    found = side_by_side.sections("performance_guide", side_by_side.published("performance_guide"), [(run, own)])
    section = next(section for section in found if section.title == "Features that the report does not name")
    checked = "checked on H100: triton_fa2; checked on H200: triton_fa2"
    assert [(row.labels, row.own) for row in section.rows] == [(("softcap",), ("no", checked, "no"))]
    assert section.title not in {table.title for table in coverage(found)}


def test_recommendations_name_what_the_numbers_say(sections):
    own = {row.labels[0]: row.own and row.own[0] for row in sections["Recommendations by use case"].rows}
    training_ = own["Training large models (>7B parameters)"]
    assert training_.startswith("triton_fa2: 2.50x (7 training cases). ")
    assert training_.endswith("torch_naive does not fit from 2,048 tokens"), "of Llama-2 70B"
    assert "80 GB hold" in own["Multi-user serving"]
    assert all(own.values())


def test_a_ratio_is_never_of_two_runs():
    printed = side_by_side.published("performance_guide")
    standard, flash = ([m for m in models() if m.implementation == name] for name in ("torch_naive", "triton_fa2"))
    other = Run("other", "local", gpu_name=H200)
    found = side_by_side.sections("performance_guide", printed, [(OF_MODELS, standard), (other, flash)])
    with_ratio = [section for section in found if "Speedup" in section.columns]
    ratios = [row.own[section.columns.index("Speedup")] for section in with_ratio for row in section.rows if row.own]
    assert set(ratios) == {"—"}


def test_a_table_of_a_gpu_is_filled_by_the_run_on_that_gpu():
    printed = side_by_side.published("performance_guide")
    h200, h100 = (Run(name, "local", gpu_name=f"NVIDIA {name} 80GB HBM3") for name in ("H200", "H100"))
    found = side_by_side.sections("performance_guide", printed, [(h200, ops()), (h100, ops())])
    runs = {section.title.partition(" ")[0]: section.runs for section in found if " > Forward" in section.title}
    assert runs == {"A100": ("H200",), "H100": ("H100",), "A10G": ("H200",)}


def test_a_table_is_of_the_one_gpu_that_fills_most_rows():
    printed = side_by_side.published("performance_guide")
    short = [m for m in ops() if m.case.seqlen_k == 512]
    long = [m for m in ops() if m.case.seqlen_k != 512]
    runs = [(Run("few", "local", gpu_name="Tesla T4"), short), (Run("many", "local", gpu_name="NVIDIA L40S"), long)]
    found = side_by_side.sections("performance_guide", printed, runs)
    (a10g,) = (section for section in found if section.title.startswith("A10G"))
    assert a10g.runs == ("many",)
    assert [row.own is None for row in a10g.rows] == [row.labels == ("512",) for row in a10g.rows]


def test_the_command_takes_several_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    RunFolder.create(tmp_path, OF_OPS, ops())
    RunFolder.create(tmp_path, OF_MODELS, models())
    assert main(["report", "performance_guide", "--run", "ops", "--run", "models"]) == 0
    text = capsys.readouterr().out
    assert "the own runs have 79 of 79 rows" in text
    assert "≈ extrapolated from two depths" in text
