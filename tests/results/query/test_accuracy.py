"""Errors by implementation as the pages ask for them."""

from dataclasses import replace

import pandas as pd
import pytest

from results.query import accuracy
from results.records import Measurement, Run, attention_case
from results.slice import Filters

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
RUN = Run("first", "local", created="2026-01-01T00:00:00", gpu_name="A GPU")
SLICE = Filters(gpu="A GPU", mode="bwd", timing="kernel", baseline="torch_naive")


def number(name: str, metric: str, value: float, *, mode="fwd", timing=None, case=CASE, run_id="first") -> Measurement:
    return Measurement(run_id, case, name, metric, "ok", mode=mode, timing=timing, value=value)


def latency(name: str, ms: float, **where) -> Measurement:
    return number(name, "latency_ms", ms, timing="kernel", **where)


ROWS = [
    number("torch_naive", "error_out", 4e-3),
    number("fast", "error_out", 2e-3),
    number("fast", "max_error_out", 0.1),
    number("fast", "error_dq", 6e-3, mode="bwd"),
    number("torch_naive", "error_dq", 3e-3, mode="bwd"),
    latency("torch_naive", 8.0),
    latency("fast", 2.0),
    latency("torch_naive", 10.0, mode="bwd"),
    latency("fast", 1.0, mode="bwd"),
    number("fast", "latency_ms", 5.0, timing="eager"),
]


def rows_of(table: pd.DataFrame) -> dict:
    return table.set_index(["implementation", "inputs"]).to_dict("index")


def test_an_error_stands_beside_that_of_naive_and_the_time_of_its_own_direction(store_of):
    store = store_of((RUN, ROWS))
    out = rows_of(accuracy.errors(store, SLICE, "out"))["fast", "normal"]
    assert (out["error"], out["naive_error"], out["over_naive"]) == (2e-3, 4e-3, 0.5)
    assert (out["latency_ms"], out["speedup"]) == (2.0, 4.0)
    dq = rows_of(accuracy.errors(store, SLICE, "dq"))["fast", "normal"]
    assert (dq["over_naive"], dq["speedup"]) == (2.0, 10.0)
    largest = rows_of(accuracy.errors(store, SLICE, "out", "max_error"))
    assert largest["fast", "normal"]["error"] == 0.1
    assert pd.isna(largest["fast", "normal"]["over_naive"])


def test_errors_and_times_are_of_one_run_that_has_both(store_of):
    later = replace(RUN, run_id="later", created="2026-02-01T00:00:00")
    untimed = [row for row in ROWS if row.metric == "error_out"]
    store = store_of((RUN, ROWS), (later, [replace(row, value=1.0) for row in untimed]))
    found = accuracy.errors(store, SLICE, "out")
    assert set(found["run_id"]) == {"first"}
    assert 1.0 not in found["error"].tolist()


def test_other_inputs_are_other_cases_and_their_naive_is_their_own(store_of):
    odd = replace(CASE, inputs="outliers")
    rows = [number("torch_naive", "error_out", 1e-2, case=odd), number("fast", "error_out", 3e-2, case=odd)]
    found = rows_of(accuracy.errors(store_of((RUN, ROWS + rows)), SLICE, "out"))
    assert found["fast", "outliers"]["over_naive"] == pytest.approx(3.0)
    assert found["fast", "normal"]["over_naive"] == pytest.approx(0.5)


def test_kinds_of_inputs_beside_each_other_are_of_the_run_that_varied_them_and_not_of_the_timed_one(store_of):
    odd = replace(CASE, inputs="outliers")
    varied = [number(name, "error_out", 9e-3, case=case) for name in ("torch_naive", "new") for case in (CASE, odd)]
    store = store_of((RUN, ROWS), (replace(RUN, run_id="varied"), varied))
    assert ("new", "normal") not in rows_of(accuracy.errors(store, SLICE, "out"))
    found = rows_of(accuracy.errors(store, SLICE, "out", by_inputs=True))
    assert found["new", "normal"]["error"] == found["new", "outliers"]["error"] == 9e-3


def test_an_error_that_fails_the_check_says_so_with_the_reason(store_of):
    wrong = replace(number("wild", "error_out", 1.0), flags=("incorrect",), note="out is wrong: 1.0.")
    found = rows_of(accuracy.errors(store_of((RUN, [*ROWS, wrong])), SLICE, "out"))
    assert found["wild", "normal"]["fails"] == "out is wrong: 1.0."
    assert pd.isna(found["fast", "normal"]["fails"])


def test_the_chosen_implementations_keep_naive_beside_them(store_of):
    store = store_of((RUN, [*ROWS, number("slow", "error_out", 1e-3)]))
    found = accuracy.errors(store, replace(SLICE, implementation=("slow",)), "out")
    assert set(found["implementation"]) == {"slow", "torch_naive"}


def table(**points: tuple[float, float | None]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"implementation": name, "error": error, "over_naive": error, "speedup": speedup}
            for name, (error, speedup) in points.items()
        ]
    )


def test_the_frontier_holds_what_nothing_beats_takes_two_percent_for_equal_and_zero_for_the_closest():
    found = accuracy.summary(
        table(close=(1.0, 1.0), fast=(4.0, 8.0), beaten=(2.0, 0.5), equal=(4.05, 8.1), untimed=(0.5, None))
    )
    assert len(found) == 5
    assert {*found.loc[found["frontier"], "implementation"]} == {"close", "fast", "equal"}
    found = accuracy.summary(table(exact=(0.0, 2.0), other=(1.0, 1.0)))
    assert found["implementation"].tolist() == ["exact", "other"]
    assert found["frontier"].tolist() == [True, False]
