"""FlashInfer's benchmark table and flashinfer-bench's traces."""

import json

import pytest

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


def test_a_prompt_of_random_lengths_has_its_own_length_only_alone_in_the_batch() -> None:
    found = understood("flashinfer.csv")
    assert (found.format, found.rejected) == ("flashinfer", ())
    prompts = [m for m in numbers(found, "latency_ms") if m.case.level == "op"]
    assert [(m.case.batch, m.case.seqlen_q, m.case.page_size) for m in prompts] == [
        (1, 103, 16),
        (1, 103, 16),
        (16, None, 0),
    ]
    assert "random up to 1024, 103 on average" in (prompts[0].note or "")


def test_decoding_has_the_mean_context_and_kernel_time() -> None:
    decoding = [m for m in numbers(understood("flashinfer.csv"), "latency_ms") if m.case.subject == "attention"][3]
    case = decoding.case
    assert (case.level, case.seqlen_q, case.seqlen_k, case.page_size, case.causal) == ("decode", 1, 501, 16, True)
    assert (decoding.timing, decoding.statistic, decoding.mode) == ("kernel", "median", "decode")


def test_latent_attention_has_one_cache_head_whatever_the_table_prints() -> None:
    (latent,) = [m for m in numbers(understood("flashinfer.csv"), "latency_ms") if m.case.subject == "mla"]
    case = latent.case
    assert (case.num_heads, case.num_kv_heads, case.head_dim, case.head_dim_v, case.latent_dim) == (
        128,
        1,
        576,
        512,
        512,
    )


def test_terabytes_become_gigabytes_and_a_rate_that_its_time_does_not_give_is_noted() -> None:
    found = understood("flashinfer.csv")
    (rate, *_) = numbers(found, "gb_per_s")
    assert rate.printed == "0.32687603305785123" and rate.value == pytest.approx(326.87603305785123)
    (latent,) = [m for m in numbers(found, "gb_per_s") if m.case.subject == "mla"]
    assert latent.note.startswith("as printed; the time gives") and "as printed" not in rate.note


def test_routines_without_attention_are_counted() -> None:
    assert "2 rows of routines that are no attention: rmsnorm." in understood("flashinfer.csv").left_out


def test_a_trace_is_a_case_of_its_own_workload() -> None:
    found = understood("flashinfer_trace.jsonl")
    (first, speedup, failed) = found.measurements
    case = first.case
    assert (case.level, case.subject, case.batch, case.num_heads, case.num_kv_heads) == (
        "decode",
        "attention workload 6120f144",
        4,
        32,
        8,
    )
    assert (case.page_size, case.seqlen_k, first.value, speedup.value) == (16, None, 0.018, 105.5)
    assert (failed.status, failed.value, failed.note) == (Status.ERROR, None, "COMPILE_ERROR: nvcc error")
    assert (failed.case.latent_dim, failed.case.head_dim, failed.case.seqlen_k) == (512, 576, 64)
    assert [(run.gpu_name, run.torch) for run in found.runs] == [("NVIDIA H100", "2.6.0"), ("NVIDIA H100", None)]


def test_a_wrong_result_has_no_speed() -> None:
    line = json.loads(excerpt("flashinfer_trace.jsonl").splitlines()[0])
    line["evaluation"] |= {"status": "INCORRECT_NUMERICAL"}
    (only,) = understood("", json.dumps(line).encode()).measurements
    assert (only.status, only.value) == (Status.INCORRECT, None)


def test_a_line_that_is_no_object_is_refused_with_its_number() -> None:
    data = excerpt("flashinfer_trace.jsonl").splitlines()
    found = understood("", b"\n".join([data[0], b"[1, 2]", b'{"definition": 3}', data[1]]))
    assert [r.line for r in found.rejected] == [2, 3] and len(found.measurements) == 3
