"""Files of other tools: every excerpt is read as recorded, and what cannot be is refused where it is.

`refused.json` holds changes of excerpts: the file, what is replaced once and by what, the lines and columns that are
refused then, and how many numbers are left.
"""

import json

import pytest

from results.checks import check
from results.records import Status
from tests.cases import cases
from tests.results.formats.peers.peer_files import EXCERPTS, NAMES, RECORDED, excerpt, numbers, record, understood

REFUSED = json.loads(EXCERPTS.with_name("refused.json").read_text())


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


def test_the_checks_find_printed_rates_that_cannot_be() -> None:
    found = understood("cudnn_inference_gpt_oss_a100.csv")
    findings = check([(run, [m for m in found.measurements if m.run_id == run.run_id]) for run in found.runs])
    assert "above_peak" in {finding.rule for finding in findings}


def test_a_wrong_result_has_no_speed() -> None:
    line = json.loads(excerpt("flashinfer_trace.jsonl").splitlines()[0])
    line["evaluation"] |= {"status": "INCORRECT_NUMERICAL"}
    (only,) = understood("", json.dumps(line).encode()).measurements
    assert (only.status, only.value) == (Status.INCORRECT, None)


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


@pytest.mark.parametrize("end", ["\r", "\x0b", "\u2028"])
def test_every_end_of_a_line_counts_where_a_table_is_looked_for(end: str) -> None:
    text = excerpt("llama_bench_vulkan.txt").decode()
    assert understood("", (end * 50 + text.replace("\n", end)).encode()).measurements


def test_a_report_without_a_configuration_leaves_the_case_open_and_another_unit_is_refused() -> None:
    report = json.loads(excerpt("optimum_t4.json"))["report"]
    found = understood("", json.dumps(report).encode())
    assert {m.case.subject for m in found.measurements} == {None}
    data = excerpt("optimum_t4.json").replace(b'"unit": "s"', b'"unit": "ms"')
    (refused,) = understood("", data).rejected
    assert refused.column == "forward.latency.unit"


@pytest.mark.parametrize("spec", ["32q", "q0s1k", "q1s1m", "q1s1k__q1s1k", "99999999q1s1k"])
def test_a_spec_that_cannot_be_is_refused(spec: str) -> None:
    entries = json.loads(excerpt("vllm_attention.json"))
    entries[0]["config"]["batch_spec"] = spec
    found = understood("", json.dumps(entries).encode())
    assert [r.line for r in found.rejected] == [1] and len(found.measurements) == 1
