"""vLLM: serve, latency, throughput and the attention benchmark."""

import json

import pytest

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, understood


def test_each_line_of_serve_is_a_run_with_its_load() -> None:
    found = understood("vllm_serve.jsonl")
    assert (found.format, found.rejected) == ("vllm_serving", ())
    assert [run.title for run in found.runs] == [
        "file.txt, request rate inf, at most 2 at once",
        "file.txt, request rate 4.0",
    ]
    got = [(m.metric, m.mode, m.value, m.mean, m.std) for m in found.measurements[:-1]]
    assert got == [
        ("time_to_first_token_ms", "prefill", 55.5, 215.5, 292.0),
        ("time_per_token_ms", "decode", 11.5, 11.25, 0.5),
        ("latency_ms", None, 166.5, 340.5, 307.5),
        ("requests_per_s", None, 5.0, None, None),
        ("tokens_per_s", "decode", 80.0, None, None),
    ]


def test_a_run_whose_requests_all_failed_has_no_numbers() -> None:
    last = understood("vllm_serve.jsonl").measurements[-1]
    assert (last.status, last.value, last.note) == (Status.ERROR, None, "none of 8 requests was completed")


def test_a_rate_that_the_duration_does_not_give_refuses_the_result() -> None:
    data = excerpt("vllm_serve.jsonl").replace(b'"output_throughput": 80.0', b'"output_throughput": 800.0')
    (refused,) = understood("", data).rejected
    assert (refused.line, refused.column) == (1, "output_throughput")


def test_latency_is_seconds_of_a_batch_that_the_file_does_not_describe() -> None:
    found = understood("vllm_latency.json")
    (only,) = found.measurements
    assert (only.metric, only.value, only.samples) == ("latency_ms", 1500, (1400, 1500, 1600))
    assert only.case.subject is None and "The file names neither the model" in found.questions[1]


def test_tokens_a_second_of_throughput_are_left_out_for_they_count_prompts() -> None:
    found = understood("vllm_throughput.json")
    assert [(m.metric, m.value) for m in found.measurements] == [("requests_per_s", 20)]
    assert any("values of tokens_per_second, which count the prompts" in text for text in found.left_out)


def test_the_attention_csv_is_seconds_of_a_layer_by_a_spec_of_lengths() -> None:
    found = understood("vllm_attention.csv")
    assert (found.format, found.rejected) == ("vllm_attention", ())
    decode, prompt, failed = found.measurements
    assert (decode.case.level, decode.case.batch, decode.case.seqlen_q, decode.case.seqlen_k) == ("decode", 32, 1, 8192)
    assert decode.value == pytest.approx(0.12) and decode.case.num_heads is None
    assert (prompt.case.level, prompt.case.batch, prompt.case.seqlen_q, prompt.mode) == ("op", 1, 2048, "fwd")
    assert (failed.implementation, failed.status) == ("TRITON_ATTN (vllm)", Status.ERROR)
    assert "1 batches of requests that differ in length." in found.left_out


def test_the_attention_json_says_heads_pages_and_errors() -> None:
    grouped, latent = understood("vllm_attention.json").measurements
    case = grouped.case
    assert (case.num_heads, case.num_kv_heads, case.head_dim, case.page_size, case.dtype) == (64, 8, 128, 16, "float16")
    assert (latent.status, latent.note) == (Status.OOM, "CUDA out of memory")
    assert (latent.case.subject, latent.case.head_dim, latent.case.head_dim_v, latent.case.latent_dim) == (
        "mla",
        576,
        512,
        512,
    )


@pytest.mark.parametrize("spec", ["32q", "q0s1k", "q1s1m", "q1s1k__q1s1k", "99999999q1s1k"])
def test_a_spec_that_cannot_be_is_refused(spec: str) -> None:
    entries = json.loads(excerpt("vllm_attention.json"))
    entries[0]["config"]["batch_spec"] = spec
    found = understood("", json.dumps(entries).encode())
    assert [r.line for r in found.rejected] == [1] and len(found.measurements) == 1
