"""Whole models as the page asks for them: rates, MFU, memory beside its formula, extrapolated latencies apart."""

from dataclasses import replace

import pytest

from results.files.journal import RunFolder
from results.query import models
from results.records import Status
from tests.pages.test_models import RUN, case, rows


@pytest.fixture
def store(store_of):
    return store_of((RUN, rows()))


def calls(store):
    table = models.calls(store, "llama2-7b", RUN.gpu_name)
    return table[table["run_id"] == RUN.run_id]


def test_a_step_has_its_rate_the_share_of_attention_and_an_extrapolated_latency_only_where_nothing_was_measured(store):
    assert models.subjects(store)[0] == "llama2-7b"
    assert RUN.gpu_name in models.gpus(store, "llama2-7b") and models.gpus(store, "llama3-70b") == []
    table = calls(store)
    step = table[(table["mode"] == "decode") & (table["seqlen_k"] == 512)].iloc[0]
    assert (step["latency_ms"], step["tokens_per_s"], step["attention_share"]) == (4.0, 250.0, 10.0)
    assert step["percent_of_copy"] == pytest.approx(100 * step["tb_per_s"] / 4.3)
    assert step["of_formula"] == pytest.approx(step["peak_memory_mb"] / step["formula_mb"])
    assert table[table["mode"] == "fwd"]["formula_mb"].isna().all(), "the formula of training is of a whole step"
    guessed = calls(store)[lambda table: table["extrapolated"]]
    assert guessed["seqlen_k"].tolist() == [32768]
    assert guessed["method_error"].tolist() == [pytest.approx(1.0)]


def test_the_error_of_the_method_is_that_of_a_model_that_the_same_run_measured(store, tmp_path):
    larger = replace(case(1, 32768), subject="llama2-70b")
    guess = next(m for m in rows() if m.case == case(1, 32768))
    both = [*(replace(m, run_id="models-b") for m in rows()), replace(guess, case=larger, run_id="models-b")]
    RunFolder.create(tmp_path, replace(RUN, run_id="models-b"), both)
    store.refresh()
    assert models.calls(store, "llama2-70b", RUN.gpu_name)["method_error"].tolist() == [pytest.approx(1.0)]


def test_a_training_step_stands_with_its_parts_its_mfu_or_its_reason(store):
    steps = models.training_steps(store, "llama2-7b", RUN.gpu_name)
    step = steps[(steps["status"] == "ok") & (steps["run_id"] == RUN.run_id)].iloc[0]
    assert (step["fwd_ms"], step["bwd_ms"], step["step_ms"], step["latency_ms"]) == (200.0, 410.0, 30.0, 645.0)
    assert step["samples_per_s"] == pytest.approx(4 / 0.645)
    assert step["mfu"] == pytest.approx(100 * step["tflops"] / 835.5)
    causal = models.training_steps(store, "llama2-7b", RUN.gpu_name, "causal")
    ours = causal[(causal["status"] == "ok") & (causal["run_id"] == RUN.run_id)].iloc[0]
    assert ours["mfu"] < step["mfu"]
    skipped = steps[(steps["status"] == "skipped") & (steps["run_id"] == RUN.run_id)].iloc[0]
    assert skipped["note"] == "needs 150 GiB of 139.8"
    with pytest.raises(ValueError, match="Available: palm, causal, nanogpt, torchtitan, llm-foundry"):
        models.training_steps(store, "llama2-7b", RUN.gpu_name, "hfu")


def test_the_newest_run_of_a_case_counts(store, tmp_path):
    newer = replace(RUN, run_id="models-b", created="2027-01-01T00:00:00")
    faster = [
        replace(m, run_id="models-b", value=2.0)
        for m in rows()
        if m.case == case(1, 512) and m.metric == "latency_ms" and m.status is Status.OK
    ]
    RunFolder.create(tmp_path, newer, faster)
    store.refresh()
    table = models.calls(store, "llama2-7b", RUN.gpu_name)
    step = table[(table["mode"] == "decode") & (table["seqlen_k"] == 512)]
    assert step["latency_ms"].tolist() == [2.0]


def test_a_later_run_of_one_implementation_hides_no_comparison_of_the_same_code(store, tmp_path):
    ours = next(m for m in rows() if m.metric == "latency_ms" and m.mode == "decode" and m.status is Status.OK)
    beside = replace(ours, run_id="both", implementation="another")
    both = [replace(ours, run_id="both"), beside]
    RunFolder.create(tmp_path, replace(RUN, run_id="both", created="2027-01-01", kernel_hash="new"), both)
    RunFolder.create(
        tmp_path, replace(RUN, run_id="alone", created="2027-02-01", kernel_hash="new"), [replace(ours, run_id="alone")]
    )
    store.refresh()
    table = models.calls(store, "llama2-7b", RUN.gpu_name)
    step = table[(table["mode"] == "decode") & (table["seqlen_k"] == ours.case.seqlen_k) & ~table["extrapolated"]]
    assert {*step["run_id"]} == {"both"}
    assert len(step) == 2


def test_a_plain_call_stands_where_a_device_has_no_time_of_its_own(store, tmp_path):
    cpu = replace(RUN, run_id="cpu", gpu_name="A CPU", device_type="cpu")
    step = next(m for m in rows() if m.metric == "latency_ms" and m.mode == "decode")
    none = {"value": None, "statistic": None, "n": None, "note": "A CPU has no device time."}
    skipped = replace(step, run_id="cpu", status=Status.SKIPPED, **none)
    RunFolder.create(tmp_path, cpu, [skipped, replace(step, run_id="cpu", timing="eager", value=8.0)])
    store.refresh()
    table = models.calls(store, "llama2-7b", "A CPU")
    assert table[["timing", "status", "latency_ms"]].values.tolist() == [["eager", "ok", 8.0]]
