"""The page Models: the calculator without any run, and over a home with a small run of known numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pages.ui.models import answer, calculator, measured
from results.files.journal import RunFolder
from results.implementations import known_names
from results.levels.model_memory import ModelMemory
from results.levels.model_table import model
from results.recommend import model_fit
from results.recommend.model_attention import LayerTime
from results.records import Case, Measurement, Run, Status, attention_case
from tests.cases import cases
from tests.pages.conftest import opened, shown

RUN = Run("models-a", "local", **cases(__file__, "RUN"))
KERNEL = attention_case(batch=1, num_heads=32, num_kv_heads=8, seqlen=8192, head_dim=128, dtype="bfloat16", causal=True)
STEP_MS = {512: 4.0, 8192: 5.0}


def case(seqlen_q: int, seqlen_k: int, **settings) -> Case:
    config = model("llama2-7b")
    sizes = {"num_heads": config.heads, "num_kv_heads": config.kv_heads, "head_dim": 128, "head_dim_v": 128}
    given = {"optimizer": "none", "batch": 1, "checkpointing": False, "compiled": True} | settings
    return Case(seqlen_q=seqlen_q, seqlen_k=seqlen_k, **cases(__file__, "CASE"), **sizes, **given)


def rows() -> list[Measurement]:
    """Decoding at two contexts and an extrapolated one, and a training step with its parts."""
    found = []

    def add(of: Case, name: str, mode: str, metric: str, value: float, timing: str | None = None) -> None:
        found.append(
            Measurement(RUN.run_id, of, name, metric, Status.OK, mode, timing, value=value, statistic="median", n=5)
        )

    for context, ms in STEP_MS.items():
        add(case(1, context), "triton_split_kv", "decode", "latency_ms", ms, "kernel")
        add(case(1, context), "triton_split_kv", "decode", "attention_share", 10.0)
        add(case(1, context), "triton_split_kv", "decode", "peak_memory_mb", 13000.0 + context / 2)
    add(case(1, 32768), "triton_split_kv", "decode", "latency_extrapolated_ms", 9.0, "kernel")
    add(case(1, 8192), "triton_split_kv", "decode", "latency_extrapolated_ms", 5.05, "kernel")
    add(case(2048, 2048), "triton_fa2", "prefill", "latency_ms", 64.0, "kernel")
    for metric in ("latency_ms", "peak_memory_mb"):  # of a foreign run that states no context: no chart shows it
        add(replace(case(1, 512), seqlen_k=None), "triton_split_kv", "decode", metric, 1.0, "kernel")
    train = case(2048, 2048, optimizer="adamw_bf16", batch=4)
    for mode, ms in {"fwd": 200.0, "bwd": 410.0, "step": 30.0, "train": 645.0}.items():
        add(train, "triton_fa2", mode, "latency_ms", ms, "eager")
    found.append(
        Measurement(
            RUN.run_id, train, "torch_naive", "latency_ms", Status.SKIPPED, "train", note="needs 150 GiB of 139.8"
        )
    )
    return found


@pytest.fixture(scope="module")
def measured_home(shared_home: Path) -> Path:
    RunFolder.create(shared_home, RUN, rows())
    return shared_home


@pytest.fixture
def page(measured_home):
    return of_the_run()


def of_the_run():
    """The page at the model and GPU of the run."""
    page = opened("models", model="llama2-7b")
    if any(box.key == "model_gpu" for box in page.selectbox):  # runs of another GPU ship
        page.selectbox(key="model_gpu").set_value(RUN.gpu_name).run()
    return page


def test_a_model_that_nobody_measured_gets_the_calculator_and_what_to_run(home, app):
    page = app.switch_page("pages/models.py").run()
    page.selectbox(key="model").set_value("llama3-8b").run()
    text = shown(page)
    assert "Llama-3 8B: training 1 × 8k takes 105.90 GiB and fits 141 GB" in text, (
        "the card of the GPU with most times is the default"
    )
    assert "serving 1 × 32k takes 22.08 GiB and fits 141 GB, up to ≈ " in text
    assert "weights 14.96 GiB" in text
    assert "32 query heads on 8 KV heads: KV cache 4.00 GiB at 32k" in text
    assert "Not included: " in text
    page.selectbox(key="card").set_value("24 GB").run()
    assert "takes 105.90 GiB and does not fit 24 GB (fits 141 GB)" in shown(page)
    assert "fits 24 GB, up to ≈ 39,200 tokens" in shown(page)
    page.selectbox(key="card").set_value("80 GB").run()
    assert "does not fit 80 GB (fits 141 GB; with recomputed activations 60.82 GiB, which fits 80 GB)" in shown(page)
    page.selectbox(key="model").set_value("llama3-70b").run()  # of which no run ships
    assert "No run measured Llama-3 70B yet" in shown(page)
    assert "python -m runner run models --set subject=llama3-70b" in page.code[0].value
    linked = {"model": "llama3-8b", "train_seqlen": "8192", "serve_context": "32768", "card": "80 GB"}
    answer = "(fits 141 GB; with recomputed activations 60.82 GiB, which fits 80 GB); serving 1 × 32k"
    assert answer in shown(opened("models", **linked)), "a link keeps the question"


def test_the_question_is_answered_in_one_place_and_its_charts_agree(page):
    text = shown(page)
    assert "Llama-2 7B: training" in text
    assert "Measured on NVIDIA H100 NVL, another GPU: it generates **200 tokens/s** with triton_split_kv" in text
    assert "trains at **12,701 tokens/s** with triton_fa2, compiled (4 × 2k, the nearest measured shape)" in text
    traces = {trace["name"]: trace for trace in _chart(page, "GiB")["data"]}
    assert traces["decode, batch 1, measured"]["y"] == [pytest.approx((13000 + c / 2) / 1024) for c in STEP_MS]
    assert "decode, batch 1, by formula" in traces
    assert "2 of 2 measured peaks are within 5 %" in shown(page)
    traces = {trace["name"]: trace for trace in _chart(page, "tokens/s")["data"]}
    assert traces["triton_split_kv"]["x"] == [512, 8192]
    guessed = traces["triton_split_kv, extrapolated"]
    assert guessed["x"] == [32768]
    assert guessed["marker"]["symbol"].endswith("-open")
    page.selectbox(key="serve_context").set_value("32768").run()
    assert "(1 × 8k, the nearest measured shape)" in shown(page), "the headline names a measured context"
    page.selectbox(key="attention").set_value("torch_naive").run()
    naive = shown(page).split("training 1 × 8k takes ")[1].split(" GiB")[0]
    page.selectbox(key="attention").set_value("triton_fa2").run()
    linear = shown(page).split("training 1 × 8k takes ")[1].split(" GiB")[0]
    assert float(naive) > 1.5 * float(linear)


def test_the_speed_is_of_the_chosen_settings_or_missing(home):
    RunFolder.create(home, RUN, rows())
    page = of_the_run()
    page.selectbox(key="activations").set_value("recomputed").run()
    text = shown(page)
    assert "with recomputed activations takes" in text
    assert "12,701" not in text, "that is the speed of a run that keeps its activations"
    assert "No run measured training in bfloat16 with adamw_bf16 and activations recomputed there." in text
    slow = case(2048, 2048, optimizer="adamw_bf16", batch=4, checkpointing=True)
    row = Measurement("slow", slow, "triton_fa2", "latency_ms", Status.OK, "train", "eager", value=1000.0)
    RunFolder.create(home, replace(RUN, run_id="slow"), [row])
    page.run()
    assert "trains at **8,192 tokens/s** with triton_fa2, compiled" in shown(page)
    page.selectbox(key="activations").set_value("kept").run()
    assert "**12,701 tokens/s**" in shown(page)


def test_kernels_of_another_gpu_are_said_to_be_so(home, app, drawn):
    rows = [Measurement("op", KERNEL, "mine", "latency_ms", Status.OK, m, "kernel", value=2.0) for m in ("fwd", "bwd")]
    RunFolder.create(home, Run("op", "local", gpu_name="A GPU", device_type="cuda"), rows)
    page = app.switch_page("pages/models.py").run()
    page.selectbox(key="kernels_of").set_value("A GPU").run()
    text, table = shown(page), "".join(drawn)
    assert "Times are of A GPU, scaled to this shape: train × 1.00 of B1 H32 KV8 at 8k" in text
    assert "Not measured there: decode." in text
    assert "They are not times of a 141 GB card" in text
    assert "≈ 128 ms" in table, "32 layers of 2 ms forward and 2 ms backward"
    assert "not measured" in table
    assert "attention time on A GPU" in table
    assert "model, at least on A GPU" in table
    assert "Fastest attention by itself on A GPU: train mine (the only one measured)" in text


def test_tables_say_what_fits_and_what_was_measured_at_exactly_which_shape(page, drawn):
    page.run()
    tables = "\n".join(drawn)
    assert 'aria-label="Whether the model fits, by GPU memory"' in tables
    assert "RTX 4090" in tables
    moved = 2 * (6_607_077_376 + 4096) + (512 + 1) * 512 * 1024
    assert f"{100 * moved / 4e-3 / 4.3e12:.0f} %" in tables, "generation states its share of the copy bandwidth"
    assert 'aria-label="Prefills: rate and memory"' in tables
    assert "32,000.0" in tables, "2048 tokens in 64 ms"
    assert "extrapolated (method 1.0 % off)" in tables, "by how much it was off where the whole was measured"
    for part in ("200 ms", "410 ms", "30.0 ms", "645 ms"):
        assert part in tables
    flops = 8192 * (6 * 6_607_077_376 + 12 * 32 * 4096 * 2048)
    assert f"{100 * flops / 0.645 / 835.5e12:.1f} %" in tables
    assert "needs 150 GiB of 139.8" in tables, "what does not fit says what it needs"
    assert tables.count("not at this shape") == 3, "nobody trained 1 × 8k or decoded at 32k"
    drawn.clear()
    for key, value in (("train_seqlen", "2048"), ("train_batch", "4"), ("serve_context", "8192")):
        page.selectbox(key=key).set_value(value)
    page.run()
    assert "645 ms on NVIDIA H100 NVL with triton_fa2, compiled" in "".join(drawn)
    assert "5.00 ms on NVIDIA H100 NVL with triton_split_kv, compiled" in "".join(drawn)
    drawn.clear()
    page.selectbox(key="activations").set_value("recomputed").run()
    assert "ms on NVIDIA H100 NVL with triton_fa2" not in "".join(drawn)


def _chart(page, axis: str) -> dict:
    specs = [json.loads(each.proto.spec) for each in page.get("plotly_chart")]
    return next(spec for spec in specs if spec["layout"].get("yaxis", {}).get("title", {}).get("text") == axis)


def test_every_model_and_setting_can_be_chosen(page):
    for key, value in (("model", "deepseek-v2-lite"), ("latent", "cached"), ("activations", "recomputed")):
        page.selectbox(key=key).set_value(value).run()
        assert not page.exception
    assert "DeepSeek-V2-Lite" in shown(page)
    page.selectbox(key="model").set_value("gpt2").run()
    assert page.selectbox(key="serve_context").options == ["512", "1024"], "it has no positions beyond that"
    assert "training 1 × 1k" in shown(page)
    assert set(calculator.ATTENTIONS) <= set(known_names())
    assert set(calculator.PART_WORDS) == {name for name, _ in model_fit.parts(ModelMemory("", 0.0))}


def test_the_parts_of_a_bar_add_up_to_its_peak():
    moment = ModelMemory("decoding", 1024.0, cache=512.0, workspace=256.0)
    chart = calculator.parts_bars([("serve", moment)], 2048.0, "2 GB")
    assert sum(series.x[0] for series in chart.series) == moment.peak / 1024


def test_a_step_names_the_smallest_card_and_a_time_scaled_far_is_rough():
    of = case(1, 8192)
    time = LayerTime("mine", 2.0, KERNEL, 1.5, "r")
    step = answer.StepAnswer("decode", of, "decode", 28 * 1024.0, 4096, time, 1.0)
    question = calculator.ModelQuestion("triton_fa2", "24 GB", case(2048, 2048), of)
    row = answer._row(step, question, None)
    assert (row["fits"], row["smallest"], row["time"], row["least"]) == ("no", "32 GB", "≈ 64.0 ms", "≥ 1.00 ms")
    huge = answer._row(replace(step, needs_mb=1e9, time=None, least_ms=None), question, None)
    assert (huge["smallest"], huge["attention"], huge["time"], huge["least"]) == ("none", "not measured", "–", "–")
    assert answer._row(replace(step, needs_mb=1024.0), question, None)["fits"] == "yes"
    assert answer._time(replace(step, time=replace(time, factor=4.5))).endswith("(rough)")
    assert answer._time(replace(step, time=replace(time, factor=0.2))).endswith("(rough)")
    assert answer._verdict(step, "24 GB") == "does not fit 24 GB (fits 32 GB)"
    assert answer._verdict(replace(step, needs_mb=1e9), "24 GB") == "does not fit 24 GB (nor any larger card)"
    assert [answer._count(n) for n in (124_000_000, 8_030_000_000)] == ["124 million", "8.03 billion"]


def test_a_row_without_a_rate_is_never_the_nearest():
    rows = pd.DataFrame({"batch": [1, 2], "seqlen_k": 64, "tokens_per_s": [float("nan"), 3.0]})
    assert measured._nearest(rows, 1, 64) == {"batch": 2, "seqlen_k": 64, "tokens_per_s": 3.0}
    assert measured._nearest(rows[:1], 1, 64) is None
