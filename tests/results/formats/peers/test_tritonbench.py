"""tritonbench's CSV and printed tables."""

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, understood


def test_a_shape_of_other_length_is_refused() -> None:
    data = excerpt("tritonbench.csv").decode().replace("(4, 48, 1024, 1024, 128)", "(4, 48, 1024)")
    found = understood("", data.encode())
    assert [(r.line, r.reason) for r in found.rejected] == [(2, "is not a tuple of 5 whole numbers")]


def test_a_column_of_text_beside_numbers_is_no_failure() -> None:
    data = b"(Batch, Heads, SeqLen, Dhead);a-best_config;a-latency\n(4, 32, 512, 64);BLOCK_M: 128;0.25\n"
    (only,) = understood("", data).measurements
    assert (only.metric, only.value, only.status) == ("latency_ms", 0.25, Status.OK)


def test_a_shape_without_names_is_assumed_by_how_many_numbers_it_has() -> None:
    found = understood("", b"x_val;flash-tflops\n(4, 48, 1024, 64);120.5\naverage;120.5\n")
    (only,) = found.measurements
    assert (only.metric, only.value, only.case.seqlen_q, only.case.head_dim) == ("tflops", 120.5, 1024, 64)
    assert "x_val is (Batch, Heads, SeqLen, Dhead)." in found.assumptions
