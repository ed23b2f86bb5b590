"""Liger-Kernel's long table: attention kernels are taken, the others counted."""

import pytest

from tests.results.formats.peers.peer_files import excerpt, understood


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
