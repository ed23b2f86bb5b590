"""cuDNN frontend's result files: three training headers, the inference header, the Llama times."""

import re

import pytest

from results.checks import check
from results.formats import UploadError
from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("749.317", "inf", "time_ms"),
        ("749.317", "nan", "time_ms"),
        ("749.317", "0.000", "time_ms"),
        ("top_left", "diagonal", "attn_mask"),
        ("top_left,2,32768,32768", "top_left,2,1,32768", "attn_mask"),
        ("bfloat16", "int4", "data_type"),
        ("fwd,False", "sideways,False", "profile_pass"),
        (",128,128,192", ",128,0,192", "num_kv_heads"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_column(old: str, new: str, column: str) -> None:
    data = excerpt("cudnn_training_c_a100.csv").decode().replace(old, new, 1)
    found = understood("", data.encode())
    assert [(r.line, r.column) for r in found.rejected] == [(2, column)]
    assert len(numbers(found, "latency_ms")) == 3


def test_a_row_that_is_there_twice_is_refused_whole() -> None:
    data = excerpt("cudnn_training_c_a100.csv")
    found = understood("", data + data.splitlines(keepends=True)[1])
    assert [(r.line, r.reason.startswith("repeats line 2")) for r in found.rejected] == [(6, True)]


def test_a_table_without_its_times_is_refused_and_not_read_as_some_other_table() -> None:
    data = excerpt("cudnn_training_a_h200.csv").replace(b"fwd_time_ms", b"fwd_ms").replace(b"bwd_time_ms", b"bwd_ms")
    with pytest.raises(UploadError, match="no column time_ms or fwd_time_ms"):
        understood("", data)


def test_a_table_that_lacks_a_few_columns_is_told_which() -> None:
    data = excerpt("cudnn_inference_mla_b300.csv").replace(b"kv_cache_dtype", b"cache").replace(b"q_tokens", b"tokens")
    with pytest.raises(UploadError, match="inference benchmark: It lacks the columns kv_cache_dtype, q_tokens"):
        understood("", data)


def test_skipped_is_unsupported_whatever_the_message_says() -> None:
    data = excerpt("cudnn_training_c_a100.csv").decode()
    data = data.replace("749.317,117.000,0.000,10,,True,False,", "inf,0.000,0.000,10,,False,True,backend says no")
    (first, *_) = understood("", data.encode()).measurements
    assert (first.status, first.value, first.note) == (Status.UNSUPPORTED, None, "backend says no")


def test_rates_of_inference_windows_are_kept_as_printed_and_noted_for_they_count_no_window() -> None:
    found = understood("cudnn_inference_gpt_oss_a100.csv")
    rates = numbers(found, "tflops") + numbers(found, "gb_per_s")
    noted = [m for m in rates if (m.note or "").startswith("as printed; the time gives")]
    assert len(noted) == 4 and all(m.printed for m in noted)
    assert any(re.match(r"\d printed values of TFLOP/s differ", text) for text in found.assumptions)


def test_the_checks_find_printed_rates_that_cannot_be() -> None:
    found = understood("cudnn_inference_gpt_oss_a100.csv")
    findings = check([(run, [m for m in found.measurements if m.run_id == run.run_id]) for run in found.runs])
    assert "above_peak" in {finding.rule for finding in findings}


def test_pages_count_only_where_the_backend_reads_them() -> None:
    data = excerpt("cudnn_inference_mla_b300.csv").decode().replace("generation,cudnn,", "generation,flash_mla,", 1)
    found = understood("", data.encode())
    assert [m.case.page_size for m in numbers(found, "latency_ms")] == [0, 32, 0, 0]


def test_a_speedup_that_the_times_do_not_give_is_kept_as_printed_and_noted() -> None:
    data = excerpt("cudnn_llama_h200.csv").replace(b"1.0699159337629112", b"3.0699159337629112")
    found = understood("", data)
    wrong, right = numbers(found, "speedup")
    assert wrong.value == 3.0699159337629112 and wrong.note == "as printed; the numbers give 1.07" and not right.note
    assert any(text.startswith("1 printed values of Speedup differ") for text in found.assumptions)
