"""Checks of whole models: memory below its parts, steps faster than the memory."""

from dataclasses import replace

import pytest

from results.records import Case
from tests.builders import H200, found, row

STEP = Case(level="model", subject="llama2-7b", batch=1, seqlen_q=1, seqlen_k=32768, dtype="float16")


def test_a_cache_takes_memory_beside_the_weights():
    (finding,) = found("below_parts", row(14.2 * 1024, "peak_memory_mb", case=STEP, mode="decode"))
    assert "its parts take 28.6 GiB (weights 12.6, KV cache 16.0)" in finding.sentence
    assert found("below_parts", row(29.0 * 1024, "peak_memory_mb", case=STEP, mode="decode")) == []


def test_a_model_cut_to_few_layers_needs_less():
    assert found("below_parts", row(4096.0, "peak_memory_mb", case=replace(STEP, num_layers=2), mode="decode")) == []


@pytest.mark.parametrize("changes", [{"subject": "llama4"}, {"batch": None}, {"seqlen_k": None}])
def test_what_is_not_said_is_not_judged(changes):
    assert found("below_parts", row(1.0, "peak_memory_mb", case=replace(STEP, **changes), mode="decode")) == []


def test_a_step_reads_its_weights_and_its_cache():
    short = replace(STEP, seqlen_k=512)
    assert found("above_step_bandwidth", row(2.0, case=short, mode="decode")) != []
    assert found("above_step_bandwidth", row(3.0, case=short, mode="decode")) == []
    (finding,) = found("above_step_bandwidth", row(600.0, "tokens_per_s", case=short, mode="decode"))
    assert "above the 4800 of NVIDIA H200" in finding.sentence
    assert found("above_step_bandwidth", row(300.0, "tokens_per_s", case=short, mode="decode")) == []
    assert found("above_step_bandwidth", row(2.0, case=short, mode="prefill")) == []


def test_the_device_must_be_known():
    unknown = replace(H200, gpu_name="Some GPU")
    assert found("above_step_bandwidth", row(0.1, case=STEP, mode="decode"), run=unknown) == []
