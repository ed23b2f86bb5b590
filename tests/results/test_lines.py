from dataclasses import replace

import pytest

from results.lines import line_of, parse_line
from results.records import Measurement, RecordError, Status, attention_case

MEASURED = Measurement(
    run_id="r1",
    implementation="triton_fa2",
    metric="latency_ms",
    status=Status.OK,
    case=attention_case(
        batch=1, num_heads=2, num_kv_heads=2, seqlen=63, head_dim=16, dtype="float16", causal=True, window_size=0
    ),
    value=1.5,
    mode="fwd",
    timing="kernel",
    samples=(1.0, 1.5, 2.0),
)


def test_a_measurement_is_one_line_and_comes_back_from_it() -> None:
    line = line_of(MEASURED)
    assert line.count("\n") == 1 and line.endswith("\n")
    assert parse_line(line.encode()) == MEASURED


def test_a_sample_that_is_not_finite_makes_no_line() -> None:
    with pytest.raises(RecordError, match="latency_ms of triton_fa2 has a sample that is not finite"):
        line_of(replace(MEASURED, samples=(1.0, float("inf"))))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe", "Not a complete JSON line"),
        (b"[1]", "Not a JSON object"),
        (b"{}", "Missing fields"),
        (b'{"run_id":"r1","implementation":"x","metric":"m","status":"ok","value":1,"speed":2}', "speed"),
        (b'{"run_id":"r1","implementation":"x","metric":"m","status":"fine","value":1}', "fine"),
        (b'{"run_id":"r1","implementation":"x","metric":"m","status":"ok","value":NaN}', "finite"),
    ],
)
def test_a_malformed_line_says_what_is_wrong(line: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        parse_line(line)
