"""The nouns keep their rules, and go to JSON and back unchanged."""

import json
import os
import random
from dataclasses import replace

import pytest

from results.formats.errors import CellError
from results.formats.validation import run_of
from results.records import (
    RUN_SCHEMA,
    Case,
    Measurement,
    RecordError,
    Run,
    Status,
    attention_case,
    measurement_from_json,
    measurement_to_json,
    run_from_json,
    run_to_json,
)
from tests.cases import cases

CASE = attention_case(batch=2, num_heads=8, num_kv_heads=2, seqlen=200, head_dim=64, dtype="bfloat16", causal=False)
LATENCY = Measurement(
    "r1", CASE, "triton_fa2", "latency_ms", Status.OK, mode="bwd", timing="kernel", value=0.25, samples=(0.2, 0.3)
)


@pytest.mark.parametrize(
    "measurement",
    [
        LATENCY,
        Measurement("r1", Case(level=None, subject=None), "x", "speedup", Status.OK, baseline="torch", value=2.0),
        replace(LATENCY, round_sizes=(1, 1), sm_clock_mhz=1980.0, config="128x64", case=replace(CASE, inputs="large")),
        Measurement("r1", CASE, "x", "latency_ms", Status.OUT_OF_RESOURCES, note="needs 300 KB", flags=("retried",)),
    ],
)
def test_a_measurement_goes_to_json_and_back(measurement: Measurement) -> None:
    record = json.loads(json.dumps(measurement_to_json(measurement)))
    assert measurement_from_json(record) == measurement
    assert record["measurement_id"] == measurement.measurement_id


def test_a_run_goes_to_json_and_back() -> None:
    peaks = {"bfloat16": 700.5, "tf32": 400.0}
    sweep = {"name": "quick", "seqlen": [1, 2]}
    run = Run("r1", "local", gpu_name="H200", tf32=False, seed=7, measured_tflops=peaks, measured_gbs=4e3, sweep=sweep)
    assert run_from_json(json.loads(json.dumps(run_to_json(run)))) == run
    assert "implementations" not in run_to_json(run)
    declared = replace(run, implementations={"torch_naive": {"family": "pytorch", "memory": {"growth": "matrix"}}})
    assert run_from_json(json.loads(json.dumps(run_to_json(declared)))) == declared


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *cases(__file__, "test_the_id_tells_apart_whatever_is_another_number"),
        ("case", replace(CASE, seqlen_k=201)),
        ("case", replace(CASE, causal=None)),
        ("case", replace(CASE, inputs="normal")),
    ],
)
def test_the_id_tells_apart_whatever_is_another_number(field: str, value: object) -> None:
    assert replace(LATENCY, **{field: value}).measurement_id != LATENCY.measurement_id


def test_a_journal_from_before_a_field_was_added_reads_with_its_ids() -> None:
    record = measurement_to_json(LATENCY)
    for name in ("round_sizes", "sm_clock_mhz", "config", "inputs"):
        del record[name]
    assert measurement_from_json(record) == LATENCY
    assert LATENCY.measurement_id == "925cad5a5d284d01d2d0"  # as it was then


@pytest.mark.parametrize("peaks", [{"int8": 1.0}, {"bfloat16": 0.0}, {"bfloat16": "fast"}, {"float32": float("inf")}])
def test_a_measured_peak_is_a_rate_of_a_known_kind(peaks: dict) -> None:
    with pytest.raises(RecordError, match="measured_tflops"):
        Run("r1", "local", measured_tflops=peaks)


@pytest.mark.parametrize("changes", [{"value": 1.0}, {"samples": ()}, {"note": "again"}, {"time": "2026-11-21"}])
def test_measuring_the_same_again_keeps_the_id(changes: dict) -> None:
    assert replace(LATENCY, **changes).measurement_id == LATENCY.measurement_id


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *cases(__file__, "test_a_measurement_that_breaks_a_rule_is_refused_with_the_reason"),
        ({"value": float("nan")}, "finite"),
        ({"ci_high": float("inf")}, "finite"),
        ({"samples": (0.2, float("nan"))}, "samples hold nan"),
    ],
)
def test_a_measurement_that_breaks_a_rule_is_refused_with_the_reason(changes: dict, reason: str) -> None:
    with pytest.raises((RecordError, ValueError), match=reason):
        replace(LATENCY, **changes)


@pytest.mark.parametrize("changes", [{"metric": "compile_ms"}, {"metric": "error_out"}, {"metric": "extra_memory_mb"}])
def test_what_can_be_nothing_may_be_0(changes: dict) -> None:
    assert replace(LATENCY, samples=(), value=0.0, **changes).value == 0.0


def test_a_mean_need_not_lie_between_the_quantiles() -> None:
    assert replace(LATENCY, statistic="mean", p20=0.1, p80=0.2).value == 0.25


@pytest.mark.parametrize(
    ("changes", "reason"), cases(__file__, "test_a_case_that_cannot_be_is_refused_with_the_reason")
)
def test_a_case_that_cannot_be_is_refused_with_the_reason(changes: dict, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        replace(CASE, **changes)


@pytest.mark.parametrize("run_id", ["", "a/b", ".hidden", ".."])
def test_a_run_id_is_a_plain_folder_name(run_id: str) -> None:
    with pytest.raises(RecordError, match="plain folder name"):
        Run(run_id, "local")


@pytest.mark.parametrize(("field", "value"), [("causal", 0), ("batch", 2.0), ("window_size", False)])
def test_a_line_is_refused_though_an_equal_value_of_another_type_was_read_before(field: str, value: object) -> None:
    record = measurement_to_json(LATENCY)
    assert record[field] == value
    assert measurement_from_json(record).case == LATENCY.case
    with pytest.raises(RecordError, match=field):
        measurement_from_json(record | {field: value})


def test_an_unknown_field_is_named_and_what_a_source_did_not_say_is_none() -> None:
    with pytest.raises(RecordError, match="speed"):
        measurement_from_json(measurement_to_json(LATENCY) | {"speed": 1})
    with pytest.raises(RecordError, match="color"):
        run_from_json(run_to_json(Run("r1", "local")) | {"color": 1})
    said = {name: value for name, value in vars(Case()).items() if value is not None}
    assert said == {"level": "op", "subject": "attention"}


def test_any_record_of_a_run_is_read_or_refused_in_words_like_an_import() -> None:
    chance, values = random.Random(1), (None, True, -1, 0.5, 1e300, float("nan"), "x", "\x00", [], ["x"], {}, {"x": 5})
    read = 0
    for _ in range(int(os.environ.get("ATTNBENCH_RECORDS", "3000"))):
        record = {"run_id": "r1", "source": "local"}
        for name in chance.sample([*RUN_SCHEMA, "unknown"], chance.choice((1, 1, 2, 5))):
            record[name] = chance.choice(
                (*values, {"x": {chance.choice((*RUN_SCHEMA, "memory")): chance.choice(values)}})
            )
        try:
            read += run_from_json(record).run_id == record["run_id"]
        except RecordError as error:
            with pytest.raises(CellError):
                run_of(record)
            assert len(str(error)) > 10
    assert read > 200
