"""The numbers of tables, worked out by hand for a made-up run: rates, clocks, energy, memory, ends of spreads."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from results import levels
from results.query import bandwidth, gpus, memory, scaling, speedups, sustained
from results.records import Measurement, Run, Status, attention_case, decode_case
from results.slice import Filters
from results.store.database import Store

CASE = attention_case(batch=2, num_heads=4, seqlen=1024, head_dim=64, dtype="bfloat16", causal=True)
DECODE = decode_case(batch=4, num_heads=8, num_kv_heads=2, context=4096, head_dim=64, dtype="bfloat16")
H200 = {"gpu_name": "NVIDIA H200", "sm_count": 100, "power_limit_w": 500.0, "tf32": False}
MEASURED = {"measured_tflops": {"bfloat16": 800.0}, "measured_gbs": 4000.0}
ONE = Run("one", "local", created="2026-01-01", **H200, **MEASURED)
OTHER = replace(ONE, run_id="other", gpu_name="NVIDIA L4", created="2026-01-02", measured_tflops={"bfloat16": 80.0})
SLICE = Filters(gpu="NVIDIA H200", mode="fwd", timing="kernel", baseline="slow")


def _rows(run_id: str, scale: float) -> Iterator[Measurement]:
    fwd = {"run_id": run_id, "case": CASE, "status": Status.OK, "mode": "fwd"}
    spread = {"p20": 0.9 * scale, "p80": 1.2 * scale, "n": 30, "statistic": "median", "sm_clock_mhz": 1000.0}
    yield Measurement(**fwd, implementation="slow", metric="latency_ms", timing="kernel", value=scale, **spread)
    unspread = {"std": 0.1 * scale, "n": 20, "statistic": "mean"}
    yield Measurement(**fwd, implementation="fast", metric="latency_ms", timing="kernel", value=scale / 2, **unspread)
    if run_id == "one":
        yield Measurement(run_id, CASE, "slow", "latency_ms", Status.OK, mode="bwd", timing="kernel", value=3.0)
    yield Measurement(**fwd, implementation="slow", metric="energy_j", value=0.5)
    parts = zip(memory.MEASURED, (8.0, 4.0, 2.0, 10.0, 16.0), strict=True)
    for name, value in parts:
        yield Measurement(**fwd, implementation="slow", metric=name, value=value)
    decode = {"run_id": run_id, "case": DECODE, "status": Status.OK, "mode": "decode", "timing": "kernel"}
    yield Measurement(**decode, implementation="slow", metric="latency_ms", value=0.02)
    trace = {"run_id": run_id, "case": CASE, "implementation": "slow", "status": Status.OK, "mode": "fwd"}
    note = "back to back for 8.0 s"
    yield Measurement(**trace, metric="sustained_tflops", value=50.0, samples=(100.0, 50.0, 50.0, 40.0), n=4, note=note)
    yield Measurement(**trace, metric="sustained_power_w", value=400.0, samples=(1.0, 2.0, 3.0, 4.0), n=4)
    yield Measurement(**trace, metric="sustained_clock_mhz", value=900.0, samples=(1.0, 2.0), n=2)
    yield Measurement(**trace, metric="burst_tflops", value=200.0)


@pytest.fixture
def store(store_of: Callable[..., Store]) -> Store:
    return store_of(*((run, _rows(run.run_id, scale)) for run, scale in ((ONE, 1.0), (OTHER, 4.0))))


def test_bandwidth_is_in_terabytes_a_second_and_in_percent_of_a_copy(store: Store) -> None:
    decoding = Filters(gpu="NVIDIA H200", level="decode", mode="decode", timing="kernel", baseline="slow")
    (row,) = bandwidth.rows(store, decoding).to_dict("records")
    moved = levels.bytes_moved(DECODE, "decode")
    assert moved == pytest.approx(2 * (2 * 4 * 4096 * 2 * 64 + 2 * 4 * 8 * 64), rel=0.01)
    assert row["tb_per_s"] == pytest.approx(moved / 0.02e-3 / 1e12)
    assert row["percent_of_copy"] == pytest.approx(100 * moved / 0.02e-3 / 4000e9)
    assert row["copy_ms"] == pytest.approx(1e3 * moved / 4000e9)
    assert (row["seqlen"], row["batch"]) == (4096, 4)


def test_growth_is_the_power_of_the_last_doubling() -> None:
    assert scaling.growth([(1, 1), (4, 8), (2, 2)]) == pytest.approx(2)
    assert scaling.growth([(1, 1), (2, 2)]) == pytest.approx(1)
    assert scaling.growth([(1, 1)]) is scaling.growth([(2, 1), (2, 3)]) is scaling.growth([(0, 1), (2, 0)]) is None


def test_gpus_are_compared_by_rate_clock_and_energy(store: Store) -> None:
    names = ["NVIDIA H200", "NVIDIA L4"]
    assert gpus.pairs(store)[0] == tuple(names)
    assert set(gpus.implementations(store, names)) == {"slow", "fast"}
    table = gpus.side_by_side(store, names, "slow")
    assert set(table["mode"]) == {"fwd", "decode"}, "one GPU has no time of the backward"
    rows = {row["gpu"]: row for row in table[table["mode"] == "fwd"].to_dict("records")}
    flops = levels.flops(CASE, "fwd")
    h200, l4 = rows["NVIDIA H200"], rows["NVIDIA L4"]
    assert h200["shape"] == l4["shape"]
    assert (h200["latency_ms"], l4["latency_ms"]) == (1.0, 4.0)
    assert h200["tflops"] == pytest.approx(flops / 1e-3 / 1e12)
    assert h200["percent_of_peak"] == pytest.approx(100 * h200["tflops"] / 989.5)
    assert l4["percent_of_peak"] == pytest.approx(100 * l4["tflops"] / 121)
    assert l4["percent_of_measured"] == pytest.approx(100 * l4["tflops"] / 80)
    assert h200["flop_per_cycle_sm"] == pytest.approx(flops / (1e-3 * 1000e6) / 100)
    assert h200["joules"] == 0.5
    assert h200["gflop_per_joule"] == pytest.approx(flops / 0.5 / 1e9)
    assert h200["gflops_per_watt"] == pytest.approx(flops / 1e-3 / 500 / 1e9)
    assert (h200["seqlen"], h200["head_dim"], h200["assumed"]) == (1024, 64, "")


def test_memory_is_taken_apart_and_cells_carry_speedups_and_both_ends_of_the_spread(store: Store) -> None:
    (row,) = memory.parts(store, SLICE, ["one"]).to_dict("records")
    assert [row[name] for name in memory.MEASURED] == [8.0, 4.0, 2.0, 10.0, 16.0]
    assert row["kv_cache"] == pytest.approx(2 * 2 * 4 * 1024 * 64 * 2 / 2**20)
    assert (row["implementation"], row["mode"], row["run_id"]) == ("slow", "fwd", "one")
    fast, slow = speedups.cells(store, SLICE)
    assert (fast["implementation"], fast["speedup"], slow["speedup"]) == ("fast", 2.0, 1.0)
    assert (slow["p20"], slow["p80"], slow["n"], slow["statistic"]) == (0.9, 1.2, 30, "median")
    assert fast["p20"] == pytest.approx(0.5 - 0.8416 * 0.1)
    assert fast["p80"] == pytest.approx(0.5 + 0.8416 * 0.1)
    ranked = speedups.ranked(store, SLICE)
    assert [(row["implementation"], row["compared"], row["cases"], row["longest"]) for row in ranked] == [
        ("fast", 1, 1, 1024),
        ("slow", 1, 1, 1024),
    ]


def test_a_trace_is_compared_with_its_first_second_and_with_a_cold_call(store: Store) -> None:
    newest, trace = sustained.traces(store).to_dict("records")
    assert (newest["run_id"], trace["run_id"]) == ("other", "one")
    cold = levels.flops(CASE, "fwd") / 1e-3 / 1e12
    assert trace["of_burst"] == pytest.approx(25)
    assert (trace["cold_tflops"], trace["cold_clock_mhz"]) == (pytest.approx(cold), 1000)
    assert trace["of_cold"] == pytest.approx(100 * 50 / cold)
    series = sustained.series(store, trace)
    assert series["seconds"].tolist() == [2, 4, 6, 8]
    assert series["sustained_tflops"].tolist() == [100, 50, 50, 40]
    assert list(series.columns) == ["seconds", "sustained_tflops", "sustained_power_w", "joules_per_tflop"]
