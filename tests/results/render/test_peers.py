"""What other tools read: each layout, read by the importer of that tool, gives the numbers that went in."""

import io
import json
from collections.abc import Callable

import pytest

from results.formats import Understanding, understand
from results.records import Measurement, Run, Status, attention_case, decode_case
from results.render import export, peers
from results.store.database import Store

CASE = attention_case(batch=2, num_heads=8, num_kv_heads=2, seqlen=1024, head_dim=64, dtype="bfloat16", causal=True)
DECODE = decode_case(batch=4, num_heads=32, num_kv_heads=8, context=2048, head_dim=128, dtype="bfloat16", page_size=16)
RUN = Run("r1", "local", created="2026-11-22T10:00:00Z", gpu_name="NVIDIA H200", torch="2.11.0")


def _row(case, name: str, value: float | None, mode: str = "fwd", timing: str = "kernel", **rest) -> Measurement:
    spread = {"value": value, "p20": value * 0.9, "p80": value * 1.1, "n": 30} if value else {"note": "too large"}
    status = Status.OK if value else Status.OOM
    return Measurement("r1", case, name, "latency_ms", status, mode=mode, timing=timing, **spread, **rest)


ROWS = [
    _row(CASE, "torch_naive", 1.25),
    _row(CASE, "=mine()", 0.3123456789012345),
    _row(CASE, "=mine()", 0.9, mode="bwd"),
    _row(CASE, "=mine()", 77.0, timing="eager"),
    _row(CASE, "huge", None),
    _row(DECODE, "torch_naive", 0.5, mode="decode"),
    _row(DECODE, "mine", 0.05, mode="decode"),
]
OF_KERNELS = {("torch_naive", "fwd"): 1.25, ("'=mine()", "fwd"): 0.3123456789012345, ("'=mine()", "bwd"): 0.9}


@pytest.fixture
def store(store_of: Callable[..., Store]) -> Store:
    return store_of((RUN, ROWS))


def _numbers(found: Understanding, metric: str = "latency_ms") -> dict[tuple[str, str | None], float | None]:
    return {(m.implementation.rpartition(" (")[0], m.mode): m.value for m in found.measurements if m.metric == metric}


def test_the_long_csv_of_liger_gives_the_medians_and_quantiles(store: Store) -> None:
    found = understand("a.csv", export.export(store, "liger"))
    assert (found.format, found.rejected) == ("liger", ())
    assert _numbers(found) == OF_KERNELS
    case = found.measurements[0].case
    assert (case.batch, case.num_heads, case.seqlen_q, case.head_dim, case.dtype) == (2, 8, 1024, 64, "bfloat16")
    assert found.measurements[0].p20 == 1.25 * 0.9 and found.runs[0].gpu_name == "NVIDIA H200"


def test_the_header_of_cudnn_gives_the_times_and_keeps_failures(store: Store) -> None:
    found = understand("a.csv", export.export(store, "cudnn"))
    assert (found.format, found.rejected) == ("cudnn_training", ())
    assert _numbers(found) == OF_KERNELS | {("huge", "fwd"): None}
    assert {m.case for m in found.measurements} == {CASE}
    assert not any((m.note or "").startswith("as printed") for m in found.measurements)


def test_the_traces_of_flashinfer_bench_give_times_speedups_and_failures(store: Store) -> None:
    found = understand("a.jsonl", export.export(store, "flashinfer-trace"))
    assert (found.format, found.rejected) == ("flashinfer_trace", ())
    assert _numbers(found)["mine", "decode"] == 0.05 and _numbers(found)["huge", "fwd"] is None
    assert _numbers(found, "speedup")["mine", "decode"] == 0.5 / 0.05
    (case,) = {m.case for m in found.measurements if m.mode == "decode"}
    assert (case.batch, case.num_heads, case.num_kv_heads, case.seqlen_k, case.page_size) == (4, 32, 8, 2048, 16)


def test_the_json_of_clickbench_has_a_query_a_case_and_null_for_a_failure(store: Store) -> None:
    entries = {entry["system"]: entry for entry in json.loads(export.export(store, "clickbench"))}
    assert entries["mine"]["machine"] == "NVIDIA H200" and entries["mine"]["date"] == "2026-11-22"
    assert len({len(entry["result"]) for entry in entries.values()} | {len(entries["mine"]["queries"])}) == 1
    assert [0.05 * 0.9 / 1e3, 0.05 / 1e3, 0.05 * 1.1 / 1e3] in entries["mine"]["result"]
    assert all(row == [None] * 3 for row in entries["huge"]["result"])


def test_a_format_says_how_many_numbers_it_holds(store: Store) -> None:
    written = {form: export.write(store, form, io.BytesIO()) for form in peers.FORMS}
    assert written == {"liger": 3, "cudnn": 4, "flashinfer-trace": 5, "clickbench": 6}


def test_runs_are_grouped_into_files_that_an_upload_takes(store_of: Callable[..., Store]) -> None:
    store = store_of((RUN, ROWS), *((Run(name, "local"), [_row(CASE, "x", 1.0)]) for name in ("r2", "r3")))
    assert export.parts(store, export.EVERYTHING, len(ROWS) + 1) == [["r1", "r2"], ["r3"]]
    assert export.parts(store, export.EVERYTHING, 1) == [["r1"], ["r2"], ["r3"]]
