"""Files of other tools: every excerpt is read as recorded, and what cannot be is refused where it is.

`refused.json` holds changes of excerpts: the file, what is replaced once and by what, the lines and columns that are
refused then, and how many numbers are left.
"""

import json
import re

import pytest

from results.checks import check
from results.formats import UploadError
from results.records import Status
from tests.cases import cases
from tests.results.formats.peers.peer_files import EXCERPTS, NAMES, RECORDED, excerpt, numbers, record, understood

REFUSED = json.loads(EXCERPTS.with_name("refused.json").read_text())
DOTTED = "config.backend.name,config.backend.model,config.scenario.input_shapes.batch_size,\
config.scenario.input_shapes.sequence_length,config.scenario.generate_kwargs.max_new_tokens,config.backend.torch_dtype,\
config.environment.gpu,report.traceback,report.prefill.latency.unit,report.prefill.latency.mean,\
report.prefill.latency.p50,report.prefill.memory.max_allocated,report.decode.latency.mean,\
report.decode.throughput.unit,report.decode.throughput.value,report.per_token.latency.mean,report.per_token.latency.p50\n"
ROW = "pytorch,org/model,1,256,64,float16,['NVIDIA A10G'],,s,0.05,0.049,1048.576,1.9,tokens/s,33.0,0.03,0.029\n"
FAILED = "pytorch,org/model,8,256,64,float16,['NVIDIA A10G'],torch.OutOfMemoryError: CUDA out of memory,,,,,,,,,\n"


@pytest.mark.parametrize(("name", "old", "new", "refused", "left"), REFUSED)
def test_what_cannot_be_is_refused_by_line_and_column(name, old, new, refused, left) -> None:
    text = excerpt(name).decode()
    assert old in text
    found = understood("", text.replace(old, new, 1).encode())
    assert [[r.line, r.column] for r in found.rejected] == refused
    assert len(found.measurements) == left


@pytest.mark.parametrize("name", NAMES)
def test_an_excerpt_is_read_as_recorded(name: str) -> None:
    expected = json.loads(RECORDED.read_text())[name]
    assert record(name) == expected
    assert understood(name).rejected == ()


def test_each_excerpt_is_recorded_with_numbers() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert sorted(recorded) == sorted(NAMES) and all(found["numbers"] for found in recorded.values())


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


def test_a_wrong_result_has_no_speed() -> None:
    line = json.loads(excerpt("flashinfer_trace.jsonl").splitlines()[0])
    line["evaluation"] |= {"status": "INCORRECT_NUMERICAL"}
    (only,) = understood("", json.dumps(line).encode()).measurements
    assert (only.status, only.value) == (Status.INCORRECT, None)


def test_a_line_that_is_no_object_is_refused_with_its_number() -> None:
    data = excerpt("flashinfer_trace.jsonl").splitlines()
    found = understood("", b"\n".join([data[0], b"[1, 2]", b'{"definition": 3}', data[1]]))
    assert [r.line for r in found.rejected] == [2, 3] and len(found.measurements) == 3


def test_a_batch_of_the_largest_size_costs_no_memory() -> None:
    rows = excerpt("flashinfer.csv").decode().splitlines()
    at = rows[0].split(",").index("batch_size")
    cells = next(row for row in rows if row.startswith("BatchDecode")).split(",")
    data = "\n".join([rows[0], ",".join([*cells[:at], "999999999", *cells[at + 1 :]])])
    found = understood("", data.encode())
    assert {m.case.batch for m in found.measurements} == {999_999_999} and found.rejected == ()


def test_infinity_is_out_of_memory_and_nan_no_ratio() -> None:
    document = json.loads(excerpt("flashtile_a100.json"))
    document["results"]["Naive"] |= {"time_ms": [0.7, float("inf")], "memory_mb": [89.2, float("inf")]}
    document["results"]["Naive"]["time_std"] = [0.007, 0]
    document["speedups"]["Triton"][1] = float("nan")
    found = understood("", json.dumps(document).encode())
    failed = [m for m in found.measurements if m.status is Status.OOM]
    assert [(m.metric, m.value, m.case.seqlen_q) for m in failed] == [
        ("latency_ms", None, 512),
        ("peak_memory_mb", None, 512),
    ]
    assert len(numbers(found, "speedup")) == 3 and found.rejected == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *cases(__file__, "test_an_entry_that_cannot_be_is_refused_alone"),
        (("results", "Naive", "seq_lengths"), [256, 10**12]),
    ],
)
def test_an_entry_that_cannot_be_is_refused_alone(path: tuple[str, ...], value: object) -> None:
    document = json.loads(excerpt("flashtile_a100.json"))
    document[path[0]][path[1]][path[2]] = value
    found = understood("", json.dumps(document).encode())
    assert [r.line for r in found.rejected] == [2] and len(numbers(found, "latency_ms")) == 5


def test_a_width_that_the_heads_do_not_divide_refuses_every_entry() -> None:
    data = excerpt("flashtile_a100.json").replace(b'"embed_dim": 768', b'"embed_dim": 769')
    found = understood("", data)
    assert len(found.rejected) == 6 and found.measurements == ()


def test_json_cut_off_is_refused() -> None:
    with pytest.raises(UploadError):
        understood("", excerpt("flashtile_a100.json")[:-20])


def test_columns_may_stand_in_any_order_and_a_short_row_is_refused() -> None:
    rows = [line.split(",", 1) for line in excerpt("liger.csv").decode().splitlines()]
    data = "\n".join([*(f"{rest},{first}" for first, rest in rows), "speed"])
    found = understood("", data.encode())
    assert len(found.measurements) == len(understood("liger.csv").measurements)
    assert [r.reason for r in found.rejected] == ["has 1 cells where the header has 15"]


def test_json_keeps_the_samples_and_lines_of_json_say_as_much() -> None:
    array = understood("llama_bench.json")
    lines = understood("", b"\n".join(json.dumps(row).encode() for row in json.loads(excerpt("llama_bench.json"))))
    for found in (array, lines):
        rate, time = found.measurements
        assert rate.samples == (6863.1, 7147.55, 7136.37, 7115.79, 7237.21) and rate.n == 5
        assert time.samples[0] == pytest.approx(74.6019)


def test_settings_that_differ_between_rows_stand_in_the_name() -> None:
    data = excerpt("llama_bench.csv").decode().replace('"f16","f16","99"', '"q8_0","f16","99"', 1)
    names = {m.implementation for m in understood("", data.encode()).measurements}
    assert names == {
        "llama.cpp b5163 CUDA flash_attn 0 k q8_0 (llama-bench)",
        "llama.cpp b5163 CUDA flash_attn 0 k f16 (llama-bench)",
    }


def test_depth_lengthens_the_context_and_prompt_with_generation_is_left_out() -> None:
    data = excerpt("llama_bench_vulkan.txt").decode()
    data = data.replace("          tg128 |        150", "tg128 @ d512 |        150", 1).replace(
        "          pp512 |", "pp512+tg128 |", 1
    )
    found = understood("", data.encode())
    assert found.measurements[0].case.seqlen_k == 640
    assert "1 tests of a prompt and a generation together (pg)." in found.left_out


@pytest.mark.parametrize("end", ["\r", "\x0b", "\u2028"])
def test_every_end_of_a_line_counts_where_a_table_is_looked_for(end: str) -> None:
    text = excerpt("llama_bench_vulkan.txt").decode()
    assert understood("", (end * 50 + text.replace("\n", end)).encode()).measurements


def test_the_dotted_csv_has_prefill_decode_and_tokens_and_its_failures() -> None:
    found = understood("", (DOTTED + ROW + FAILED).encode())
    assert found.rejected == () and [run.gpu_name for run in found.runs] == ["NVIDIA A10G"]
    got = [(m.metric, m.mode, m.value, m.case.seqlen_k) for m in found.measurements]
    assert got == [
        ("latency_ms", "prefill", pytest.approx(49), 256),
        ("peak_memory_mb", "prefill", pytest.approx(1000), 256),
        ("tokens_per_s", "decode", 33.0, 320),
        ("time_per_token_ms", "decode", pytest.approx(29), 320),
        ("latency_ms", "prefill", None, 256),
    ]
    assert found.measurements[-1].status is Status.OOM


def test_a_report_without_a_configuration_leaves_the_case_open() -> None:
    report = json.loads(excerpt("optimum_t4.json"))["report"]
    found = understood("", json.dumps(report).encode())
    assert {m.case.subject for m in found.measurements} == {None}


def test_another_unit_is_refused() -> None:
    data = excerpt("optimum_t4.json").replace(b'"unit": "s"', b'"unit": "ms"')
    (refused,) = understood("", data).rejected
    assert refused.column == "forward.latency.unit"


def test_a_column_of_text_beside_numbers_is_no_failure() -> None:
    data = b"(Batch, Heads, SeqLen, Dhead);a-best_config;a-latency\n(4, 32, 512, 64);BLOCK_M: 128;0.25\n"
    (only,) = understood("", data).measurements
    assert (only.metric, only.value, only.status) == ("latency_ms", 0.25, Status.OK)


def test_a_shape_without_names_is_assumed_by_how_many_numbers_it_has() -> None:
    found = understood("", b"x_val;flash-tflops\n(4, 48, 1024, 64);120.5\naverage;120.5\n")
    (only,) = found.measurements
    assert (only.metric, only.value, only.case.seqlen_q, only.case.head_dim) == ("tflops", 120.5, 1024, 64)
    assert "x_val is (Batch, Heads, SeqLen, Dhead)." in found.assumptions


@pytest.mark.parametrize("spec", ["32q", "q0s1k", "q1s1m", "q1s1k__q1s1k", "99999999q1s1k"])
def test_a_spec_that_cannot_be_is_refused(spec: str) -> None:
    entries = json.loads(excerpt("vllm_attention.json"))
    entries[0]["config"]["batch_spec"] = spec
    found = understood("", json.dumps(entries).encode())
    assert [r.line for r in found.rejected] == [1] and len(found.measurements) == 1
