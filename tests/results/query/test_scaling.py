"""Throughput, shares of peaks and roofs over a run whose machine was probed."""

from dataclasses import replace

import pandas as pd
import pytest

from results import levels
from results.query import scaling
from results.query.scaling import Roof
from results.records import Measurement, Run, Status, attention_case
from results.slice import Filters
from tests.builders import add_run, latency

SLICE = Filters(gpu="NVIDIA H200", mode="fwd", timing="kernel", baseline="torch_naive")
CASE = attention_case(batch=2, num_heads=4, seqlen=1024, head_dim=64, dtype="bfloat16", causal=True)


@pytest.fixture
def store(store_of):
    facts = {"measured_tflops": {"bfloat16": 800.0}, "measured_gbs": 4000.0}
    rows = [latency("mine", 0.5, CASE, statistic="median"), latency("mine", 1.0, CASE, mode="bwd")]
    others = (("peak_memory_mb", "fwd", 8.0), ("peak_memory_mb", "fwd_bwd", 24.0), ("energy_j", "fwd", 0.25))
    rows += [latency("mine", value, CASE, metric=metric, mode=mode, timing=None) for metric, mode, value in others]
    return store_of((Run("a", "local", gpu_name="NVIDIA H200", tf32=False, **facts), rows))


def test_every_quantity_follows_from_the_latency_the_memory_and_the_peaks_of_datasheets_and_probes(store):
    table = scaling.rows(store, SLICE)
    row, flops = table.iloc[0], levels.flops(CASE, "fwd")
    assert (table.columns[table.columns.get_loc("gpu_name") + 1], row["flops"]) == ("flops", flops)
    assert row["tflops"] == pytest.approx(flops / 0.5e-3 / 1e12)
    assert row["gb_per_s"] == pytest.approx(levels.bytes_moved(CASE, "fwd") / 0.5e-3 / 1e9)
    assert row["percent_of_peak"] == pytest.approx(100 * row["tflops"] / 989.5)
    assert row["percent_of_measured"] == pytest.approx(100 * row["tflops"] / 800.0)
    assert row["time_per_token_us"] == pytest.approx(500 / 2048)
    assert row["memory_per_token_kb"] == pytest.approx(8 * 1024 / 2048)
    assert row["tokens_per_joule"] == pytest.approx(2048 / 0.25)
    assert row["joules_per_tflop"] == pytest.approx(0.25 / flops * 1e12)
    assert row["intensity"] == pytest.approx(flops / levels.bytes_moved(CASE, "fwd"))
    row = scaling.rows(store, Filters(**(vars(SLICE) | {"mode": "bwd"}))).iloc[0]
    assert row["memory_per_token_kb"] == pytest.approx(24 * 1024 / 2048)
    nominal, measured = scaling.roofs(store, SLICE, "bfloat16")
    assert (nominal.name, nominal.tflops, nominal.gb_per_s) == ("data-sheet", 989.5, 4800)
    assert (measured.name, measured.tflops, measured.gb_per_s) == ("measured, a", 800.0, 4000.0)


def test_a_roof_is_its_slope_first_and_its_flat_after_the_ridge():
    roof = Roof("x", tflops=100.0, gb_per_s=1000.0, source="")
    assert roof.at(50) == pytest.approx(50.0)
    assert roof.at(400) == 100.0
    assert Roof("x", None, None, "").at(1) is None


def test_what_says_no_seqlen_stands_on_no_line(store_of):
    rows = [latency("mine", 1.0, case) for case in (CASE, replace(CASE, seqlen_q=None))]
    opened = store_of((Run("a", "upload", gpu_name="NVIDIA H200"), rows))
    assert list(scaling.rows(opened, SLICE)["seqlen_q"]) == [CASE.seqlen_q]


def test_tf32_products_have_a_roof_of_their_own(store_of):
    case = attention_case(batch=1, num_heads=1, seqlen=128, head_dim=64, dtype="float32", causal=True)
    rows = [latency(name, 1.0, case) for name in ("mine", "mine_tf32")]
    opened = store_of((Run("a", "local", gpu_name="NVIDIA H200", measured_tflops={"tf32": 400.0}), rows))
    found = {roof.name: roof.tflops for roof in scaling.roofs(opened, SLICE, "float32")}
    assert found == {"data-sheet": 67.0, "data-sheet TF32": 494.5, "measured TF32, a": 400.0}


def test_fp8_products_of_16_bit_inputs_have_a_roof_and_a_peak_of_their_own(store_of):
    case = attention_case(batch=1, num_heads=1, seqlen=4096, head_dim=64, dtype="bfloat16", causal=True)
    rows = [latency(name, 1.0, case) for name in ("mine", "mine_fp8")]
    opened = store_of((Run("a", "local", gpu_name="NVIDIA H200", measured_tflops={"bfloat16": 800.0}), rows))
    found = {roof.name: roof.tflops for roof in scaling.roofs(opened, SLICE, "bfloat16")}
    shares = scaling.rows(opened, SLICE).set_index("implementation")[["percent_of_peak", "percent_of_measured"]]
    assert found == {"data-sheet": 989.5, "data-sheet FP8": 1979.0, "measured, a": 800.0}
    assert shares["percent_of_peak"]["mine"] == pytest.approx(2 * shares["percent_of_peak"]["mine_fp8"])
    assert shares["percent_of_measured"].isna().to_dict() == {"mine": False, "mine_fp8": True}


def test_energy_is_found_though_a_newer_run_without_it_counts_for_the_times(store, tmp_path):
    add_run(tmp_path, "b", latency("mine", 0.4, CASE), created="2026-03-01T00:00:00", gpu_name="NVIDIA H200")
    store.refresh()
    (row,) = scaling.rows(store, SLICE).to_dict("records")
    assert row["run_id"] == "b" and pd.isna(row["tokens_per_joule"])
    (row,) = scaling.rows_of_energy(store, SLICE).to_dict("records")
    assert (row["run_id"], row["tokens_per_joule"]) == ("a", pytest.approx(2048 / 0.25))
    assert scaling.rows_of_energy(store, replace(SLICE, gpu="another")).empty


@pytest.mark.parametrize("mode", ["fwd", None])
def test_memory_and_energy_that_name_no_mode_stand_beside_the_times(store_of, mode):
    common = {"run_id": "a", "case": CASE, "implementation": "mine", "status": Status.OK}
    rows = [
        Measurement(**common, metric="latency_ms", mode=mode, value=0.5),
        Measurement(**common, metric="peak_memory_mb", value=8.0),
        Measurement(**common, metric="energy_j", value=0.25),
    ]
    opened = store_of((Run("a", "upload", gpu_name="NVIDIA H200"), rows))
    (row,) = scaling.rows(opened, Filters(gpu="NVIDIA H200", mode=mode, baseline="mine")).to_dict("records")
    assert row["memory_per_token_kb"] == pytest.approx(8 * 1024 / 2048)
    assert row["tokens_per_joule"] == pytest.approx(2048 / 0.25)


def test_float32_in_six_bfloat16_products_has_a_peak_of_its_own(store_of):
    case = replace(CASE, dtype="float32")
    rows = [latency(name, 0.5, case) for name in ("triton_fa2", "torch_naive")]
    facts = {"measured_tflops": {"bfloat16": 780.0, "float32": 50.0}, "tf32": False}
    opened = store_of((Run("a", "local", gpu_name="NVIDIA H200", **facts), rows))
    found = {row["implementation"]: row for row in scaling.rows(opened, SLICE).to_dict("records")}
    roofs = {roof.name: roof.tflops for roof in scaling.roofs(opened, SLICE, "float32")}
    rate = found["triton_fa2"]["tflops"]
    assert found["triton_fa2"]["percent_of_peak"] == pytest.approx(100 * rate / (989.5 / 6))
    assert found["triton_fa2"]["percent_of_measured"] == pytest.approx(100 * rate / (780 / 6))
    assert found["torch_naive"]["percent_of_peak"] == pytest.approx(100 * rate / 67)
    assert roofs["data-sheet bf16x6"] == pytest.approx(989.5 / 6)
    assert roofs["data-sheet"] == 67.0
    gbs_alone = Run("b", "local", created="2026-12-01", gpu_name="NVIDIA H200", tf32=False, measured_gbs=4000.0)
    names = {roof.name for roof in scaling.roofs(store_of((gbs_alone, rows)), SLICE, "float32")}
    assert "measured, b" in names and "measured bf16x6, b" not in names
