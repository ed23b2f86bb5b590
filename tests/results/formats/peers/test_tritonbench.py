"""tritonbench's CSV and printed tables."""

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


def test_a_tuple_is_the_shape_and_a_backend_has_its_columns() -> None:
    found = understood("tritonbench.csv")
    assert (found.format, found.rejected) == ("tritonbench", ())
    (first, *_) = found.measurements
    case = first.case
    assert (case.batch, case.num_heads, case.seqlen_q, case.seqlen_k, case.head_dim) == (4, 48, 1024, 1024, 128)
    assert (case.causal, case.dtype, first.mode) == (None, None, None)
    (speedup,) = [m for m in numbers(found, "speedup") if m.status is Status.OK]
    assert (speedup.implementation, speedup.baseline) == ("sdpa (tritonbench)", "aten (tritonbench)")


def test_error_text_in_the_first_column_of_a_backend_is_its_failure() -> None:
    failed = [m for m in understood("tritonbench.csv").measurements if m.status is Status.OOM]
    assert [(m.implementation, m.value, m.printed) for m in failed] == [
        ("aten (tritonbench)", None, "CUDA OOM"),
        ("flash_v3 (tritonbench)", None, "CUDA OOM"),
    ]


def test_a_backend_of_accuracy_zero_has_no_speed() -> None:
    wrong = [m for m in understood("tritonbench.csv").measurements if m.status is Status.INCORRECT]
    assert [(m.implementation, m.metric, m.value) for m in wrong] == [
        ("flash_v3 (tritonbench)", "latency_ms", None),
        ("flash_v3 (tritonbench)", "speedup", None),
    ]


def test_the_row_of_averages_is_left_out() -> None:
    assert "1 rows average." in understood("tritonbench.csv").left_out


def test_the_command_before_a_printed_table_says_mask_and_pass() -> None:
    found = understood("tritonbench_latency.txt")
    assert (found.rejected, len(found.measurements)) == ((), 15)
    assert [m.case.causal for m in found.measurements] == [False] * 9 + [True] * 6
    assert {m.mode for m in found.measurements} == {"fwd"}


def test_the_label_of_2024_lacks_its_last_parenthesis() -> None:
    assert [m.value for m in understood("tritonbench_tflops.txt").measurements] == [328.882, 430.32, 389.723, 517.099]


def test_lines_of_a_log_may_begin_with_the_time() -> None:
    found = understood("tritonbench_accuracy.log")
    assert [(m.status, m.baseline) for m in found.measurements] == [
        (Status.OK, None),
        (Status.OK, None),
        (Status.OK, None),
        (Status.INCORRECT, None),
    ]


def test_a_shape_with_the_lengths_of_a_cache_is_decoding() -> None:
    found = understood("tritonbench_decoding.csv")
    case = found.measurements[0].case
    assert (case.level, case.seqlen_q, case.seqlen_k, case.num_heads, case.num_kv_heads) == ("decode", 1, 4096, 8, 1)
    assert found.measurements[0].mode == "decode"


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
