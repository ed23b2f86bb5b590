"""The one table of GPUs: which row a name means, and what follows from a row."""

import pytest

from results import derive
from results.gpus import DRIVER_NAMES, GPUS, bounds_of, find, rows_named, title
from tests.cases import cases


@pytest.mark.parametrize("name, row", cases(__file__, "test_the_name_that_the_driver_reports_is_one_row"))
def test_the_name_that_the_driver_reports_is_one_row(name, row):
    assert find(name) is GPUS[row]
    assert bounds_of(name) is GPUS[row]


@pytest.mark.parametrize("name", ["H100", "A100 80GB", "H200", "RTX 4090 Laptop GPU", "a GPU", "", None])
def test_a_name_of_several_gpus_or_of_none_is_no_row(name):
    assert find(name) is None


def test_a_name_has_the_rows_that_it_can_mean_the_highest_bounds_of_them_and_a_row_a_title():
    h100, unknown = bounds_of("H100"), bounds_of("a GPU")
    assert (h100.power_w, h100.memory_gb, h100.clock_mhz, h100.known) == (700, 94, 1980, True)
    assert (unknown.power_w, unknown.bandwidth_gb_per_s, unknown.known) == (1400, 8000, False)
    assert unknown.fp8 and bounds_of("A100").tensor_tflops == 312
    assert rows_named("A100 80GB") == ("a100 pcie 80gb", "a100 sxm4 80gb")
    assert rows_named("NVIDIA H200") == ("h200 sxm",) and rows_named("a GPU") == ()
    assert title("rtx 4070 ti super") == "RTX 4070 Ti Super"
    assert len({title(row) for row in GPUS}) == len(GPUS)


def test_rates_and_shares_follow_from_the_row_and_the_dtype():
    assert GPUS["h200 sxm"].tflops("float32") == 494.5
    assert GPUS["v100"].tflops("float32") == 15.7
    assert GPUS["h200 sxm"].tflops("float64") == 67
    assert GPUS["h200 sxm"].tflops(None) == 2 * GPUS["h200 sxm"].tflops("bfloat16") == 1979
    assert GPUS["a100 pcie 40gb"].tflops(None) == 312
    assert GPUS["a100 pcie 40gb"].fp8_tflops is None
    assert derive.peak_tflops("NVIDIA B200", "bfloat16") == 2250
    assert derive.least_ms(None, 3e8, "NVIDIA L4", "bfloat16") == 1.0


def test_every_row_is_plausible():
    assert set(DRIVER_NAMES.values()) <= set(GPUS)
    for name, gpu in GPUS.items():
        assert gpu.tensor_tflops >= gpu.tf32_tflops >= gpu.float64_tflops or "mi" in name, name
        assert gpu.shared_kb >= 64 and 2017 <= gpu.released <= 2026 and gpu.source, name
        if gpu.total_mb:
            assert 0.9 < gpu.total_mb / 1024 / gpu.memory_gb < 1.01, name
