"""cuDNN frontend's result files: three training headers, the inference header, the Llama times."""

import re

import pytest

from results.checks import check
from results.formats import UploadError
from results.records import Case, Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


def test_header_a_has_a_latency_for_each_pass_and_failures_by_their_cause() -> None:
    found = understood("cudnn_training_a_h200.csv")
    assert (found.format, found.rejected, [run.gpu_name for run in found.runs]) == (
        "cudnn_training",
        (),
        ["NVIDIA H200"],
    )
    assert [(m.mode, m.status, m.value) for m in numbers(found, "latency_ms")] == [
        ("fwd", Status.OOM, None),
        ("bwd", Status.OOM, None),
        ("fwd", Status.UNSUPPORTED, None),
        ("bwd", Status.UNSUPPORTED, None),
        ("fwd", Status.OK, 4.278),
        ("bwd", Status.OK, 16.162),
        ("fwd", Status.UNSUPPORTED, None),
        ("bwd", Status.UNSUPPORTED, None),
    ]
    first = found.measurements[0]
    assert "Tried to allocate 256.02 GiB" in (first.note or "") and first.printed == "inf"
    assert [m.value for m in numbers(found, "tflops")] == [643, 442]


def test_names_keep_the_version_the_source_and_what_differs() -> None:
    found = understood("cudnn_training_a_h200.csv")
    assert {m.implementation for m in found.measurements} == {
        "cudnn 9.19.1 (cudnn-frontend)",
        "cudnn 9.19.1 deterministic (cudnn-frontend)",
    }
    assert {m.implementation for m in understood("cudnn_training_c_a100.csv").measurements} == {
        "cudnn 9.27 (cudnn-frontend)",
        "cudnn_oss 1.31.0 (cudnn-frontend)",
        "cudnn_oss 1.31.0 deterministic (cudnn-frontend)",
        "flash_attention_4 (cudnn-frontend)",
    }


def test_a_training_row_says_the_whole_case() -> None:
    (first, *_) = understood("cudnn_training_c_a100.csv").measurements
    assert first.case == Case(
        batch=2,
        num_heads=128,
        num_kv_heads=128,
        seqlen_q=32768,
        seqlen_k=32768,
        head_dim=192,
        head_dim_v=128,
        dtype="bfloat16",
        causal=True,
        window_size=0,
        page_size=0,
        latent_dim=0,
    )
    assert (first.mode, first.timing, first.statistic, first.value) == ("fwd", "kernel", "median", 749.317)


def test_window_rows_of_training_keep_tflops_for_they_count_the_window() -> None:
    found = understood("cudnn_training_b_gb200.csv")
    assert {m.case.window_size for m in found.measurements} == {128}
    assert len(numbers(found, "tflops")) == len(numbers(found, "latency_ms")) == 6


def test_mxfp8_is_an_8_bit_case_with_its_name_in_the_implementation() -> None:
    found = understood("cudnn_training_b_gb200.csv")
    assert {m.case.dtype for m in found.measurements if "mxfp8" in m.implementation} == {"float8_e4m3fn"}
    assert "cudnn 9.22 mxfp8 deterministic (cudnn-frontend)" in {m.implementation for m in found.measurements}


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


def test_a_context_row_is_a_forward_pass_and_a_generation_row_is_decoding() -> None:
    found = understood("cudnn_inference_gpt_oss_a100.csv")
    times = numbers(found, "latency_ms")
    assert [(m.case.level, m.mode, m.case.causal) for m in times] == [
        ("op", "fwd", True),
        ("op", "fwd", True),
        ("decode", "decode", True),
        ("decode", "decode", True),
    ]
    assert {(m.case.window_size, m.case.page_size) for m in times} == {(128, 0)}
    assert times[3].implementation == "cudnn_oss (cudnn-frontend)" and "split_kv=1" in (times[3].config or "")


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


def test_absorbed_latent_attention_has_one_cache_of_576_numbers() -> None:
    found = understood("cudnn_inference_mla_b300.csv")
    first, second, *_ = (m for m in numbers(found, "latency_ms"))
    assert (first.status, first.case.level) == (Status.UNSUPPORTED, "op")
    case = second.case
    assert (case.subject, case.head_dim, case.head_dim_v, case.latent_dim, case.num_kv_heads) == (
        "mla",
        576,
        512,
        512,
        1,
    )
    assert (second.value, second.implementation) == (0.648128, "cudnn 9.25 (cudnn-frontend)")
    assert [m.value for m in numbers(found, "gb_per_s")] == [233.293, 7.858]
    assert "No execution plans support the graph" in (numbers(found, "latency_ms")[3].note or "")


def test_pages_count_only_where_the_backend_reads_them() -> None:
    data = excerpt("cudnn_inference_mla_b300.csv").decode().replace("generation,cudnn,", "generation,flash_mla,", 1)
    found = understood("", data.encode())
    assert [m.case.page_size for m in numbers(found, "latency_ms")] == [0, 32, 0, 0]


def test_llama_times_are_seconds_of_a_training_step() -> None:
    found = understood("cudnn_llama_h200.csv")
    (first, *_) = found.measurements
    assert (first.case.level, first.case.subject, first.mode) == ("model", "llama3.2-1b", "train")
    assert first.value == pytest.approx(329.12482261657716) and first.printed == "0.32912482261657716"
    assert [(m.implementation, m.baseline, m.value) for m in numbers(found, "speedup")] == [
        ("CUDNN_ATTENTION (cudnn-frontend)", "EFFICIENT_ATTENTION (cudnn-frontend)", 1.0699159337629112),
        ("FLASH_ATTENTION (cudnn-frontend)", "EFFICIENT_ATTENTION (cudnn-frontend)", 1.045670438364999),
    ]
    assert found.questions == ("The file does not name a GPU. Which one was it?",)


def test_a_speedup_that_the_times_do_not_give_is_kept_as_printed_and_noted() -> None:
    data = excerpt("cudnn_llama_h200.csv").replace(b"1.0699159337629112", b"3.0699159337629112")
    found = understood("", data)
    wrong, right = numbers(found, "speedup")
    assert wrong.value == 3.0699159337629112 and wrong.note == "as printed; the numbers give 1.07" and not right.note
    assert any(text.startswith("1 printed values of Speedup differ") for text in found.assumptions)
