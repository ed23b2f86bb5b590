"""optimum-benchmark: JSON of a report with its configuration, CSV of 2023 and of now."""

import json

import pytest

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, understood

DOTTED = "config.backend.name,config.backend.model,config.scenario.input_shapes.batch_size,\
config.scenario.input_shapes.sequence_length,config.scenario.generate_kwargs.max_new_tokens,config.backend.torch_dtype,\
config.environment.gpu,report.traceback,report.prefill.latency.unit,report.prefill.latency.mean,\
report.prefill.latency.p50,report.prefill.memory.max_allocated,report.decode.latency.mean,\
report.decode.throughput.unit,report.decode.throughput.value,report.per_token.latency.mean,report.per_token.latency.p50\n"
ROW = "pytorch,org/model,1,256,64,float16,['NVIDIA A10G'],,s,0.05,0.049,1048.576,1.9,tokens/s,33.0,0.03,0.029\n"
FAILED = "pytorch,org/model,8,256,64,float16,['NVIDIA A10G'],torch.OutOfMemoryError: CUDA out of memory,,,,,,,,,\n"


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
