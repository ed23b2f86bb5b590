"""Rates, speedups and shares that follow from a measurement."""

import pytest

from results import derive
from results.levels.tensors import query_tokens
from results.records import attention_case


def test_geometric_mean_puts_twice_and_half_at_one():
    assert derive.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert derive.geometric_mean([]) is None


def test_peak_is_known_only_for_the_name_the_driver_reports():
    assert derive.peak_tflops("NVIDIA H200", "bfloat16") == 989.5
    assert derive.peak_tflops("H200", "bfloat16") is None
    assert derive.peak_tflops("NVIDIA H200", "float32") is None
    assert derive.peak_tflops("NVIDIA H200", "float32", tf32=True) == 494.5
    assert derive.peak_tflops("NVIDIA H200", "float32", tf32=False) == 67.0
    assert derive.peak_tflops("NVIDIA H200", "float8_e4m3fn") == 1979.0
    assert derive.peak_tflops("NVIDIA A100-SXM4-80GB", "float8_e4m3fn") is None
    assert derive.peak_tflops("NVIDIA H200", "float64") == 67.0
    assert derive.peak_tflops("NVIDIA A100 80GB PCIe", "float64") == 19.5
    assert derive.peak_tflops("NVIDIA H200", "bf16x6") == pytest.approx(989.5 / 6)
    assert derive.percent_of_peak(494.75, 989.5) == 50.0


def test_a_call_takes_at_least_what_computing_or_moving_takes_at_the_datasheets_peaks():
    assert derive.least_ms(989.5e9, 4.8e6, "NVIDIA H200", "bfloat16") == 1.0
    assert derive.least_ms(989.5e9, 9.6e9, "NVIDIA H200", "bfloat16") == 2.0
    assert derive.least_ms(None, 4.8e9, "NVIDIA H200", "bfloat16") == 1.0
    assert derive.least_ms(1e12, 1e9, "a GPU", "bfloat16") is None
    assert derive.least_ms(None, None, "NVIDIA H200", "bfloat16") is None


def test_the_measured_peak_is_that_of_the_dtype_and_of_tf32_where_it_was_used():
    measured = {"bfloat16": 800.0, "float32": 50.0, "tf32": 400.0}
    assert derive.measured_peak_tflops(measured, "bfloat16") == 800.0
    assert derive.measured_peak_tflops(measured, "float32", tf32=True) == 400.0
    assert derive.measured_peak_tflops(measured, "float32", tf32=False) == 50.0
    assert derive.measured_peak_tflops(measured, "float32") is None
    assert derive.measured_peak_tflops(measured, "float16") is None
    assert derive.measured_peak_tflops(None, "bfloat16") is None


def test_tokens_are_those_of_the_queries_and_energy_is_shared_among_them():
    case = vars(attention_case(batch=4, num_heads=2, seqlen=500, head_dim=64, dtype="bfloat16", causal=False))
    assert query_tokens(case) == 2000
    assert derive.time_per_token_us(case, 3.0) == pytest.approx(1.5)
    assert derive.tokens_per_joule(case, 0.5) == 4000
    assert derive.joules_per_tflop(2e12, 0.5) == 0.25
    for function in (derive.time_per_token_us, derive.tokens_per_joule):
        assert function(case, None) is None
        assert function({**case, "batch": None}, 1.0) is None
    assert derive.joules_per_tflop(None, 0.5) is None
