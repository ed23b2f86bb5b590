"""Liger-Kernel's long table: attention kernels are taken, the others counted."""

import pytest

from tests.results.formats.peers.peer_files import excerpt, numbers, understood


def test_each_gpu_and_version_is_a_run_and_names_keep_the_version() -> None:
    found = understood("liger.csv")
    assert found.format == "liger" and found.rejected == ()
    assert [(run.gpu_name, run.title) for run in found.runs] == [
        ("NVIDIA GeForce RTX 3090", "file.txt, Liger-Kernel 0.1.1, NVIDIA GeForce RTX 3090"),
        ("NVIDIA H100 80GB HBM3", "file.txt, Liger-Kernel 0.5.10, NVIDIA H100 80GB HBM3"),
    ]
    assert "liger 0.1.1 (Liger-Kernel)" in {m.implementation for m in found.measurements}


def test_a_row_is_a_median_with_its_quantiles() -> None:
    (first, *_) = numbers(understood("liger.csv"), "latency_ms")
    assert (first.value, first.p20, first.p80) == (0.01740800030529499, 0.01740800030529499, 0.018432000651955605)
    assert (first.statistic, first.mode, first.timing) == ("median", "fwd", None)
    case = first.case
    assert (case.level, case.batch, case.seqlen_q, case.dtype, case.num_heads) == ("op", 2, 32, "bfloat16", None)
    assert case.subject == "multi_token_attention C_in 4, C_out 4, K 3, bias True, groups 1"


def test_a_module_with_projections_is_a_layer_with_its_window_in_the_subject() -> None:
    cases = {m.case for m in understood("liger.csv").measurements if m.case.level == "layer"}
    assert cases and all("kernel_size" in (case.subject or "") for case in cases)
    assert {(case.num_heads, case.head_dim) for case in cases} <= {(8, 64), (12, 64), (16, 64)}


def test_other_kernels_are_counted_and_named() -> None:
    assert "2 rows of kernels that are no attention: rms_norm." in understood("liger.csv").left_out


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        (",speed,ms,", ",speed,us,", "metric_name"),
        (",forward,", ",sideways,", "kernel_operation_mode"),
        (",L,", ",V,", "x_name"),
        ("0.01740800030529499,0.017", "nan,0.017", "y_value_50"),
        ('""B"": 2', '""B"": -2', "batch_size"),
        ('{""B""', '{B""', "extra_benchmark_config_str"),
    ],
)
def test_what_is_not_known_is_refused_by_column(old: str, new: str, column: str) -> None:
    data = excerpt("liger.csv").decode()
    assert old in data
    found = understood("", data.replace(old, new, 1).encode())
    assert [(r.line, r.column) for r in found.rejected] == [(2, column)]


def test_columns_may_stand_in_any_order_and_a_short_row_is_refused() -> None:
    rows = [line.split(",", 1) for line in excerpt("liger.csv").decode().splitlines()]
    data = "\n".join([*(f"{rest},{first}" for first, rest in rows), "speed"])
    found = understood("", data.encode())
    assert len(found.measurements) == len(understood("liger.csv").measurements)
    assert [r.reason for r in found.rejected] == ["has 1 cells where the header has 15"]
