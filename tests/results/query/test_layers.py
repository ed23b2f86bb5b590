"""Layers as the page asks for them: rows, ranges of speedup, ours beside PyTorch's best."""

from dataclasses import replace

import pytest

from results.query import layers
from results.records import Run, layer_case
from results.slice import Filters
from tests.builders import latency

CASE = layer_case(
    "gqa", batch=2, num_heads=32, num_kv_heads=8, seqlen=2048, head_dim=64, dtype="bfloat16", causal=False
)
LATENT = replace(CASE, subject="mla", num_kv_heads=32, latent_dim=512)
SLICE = Filters(gpu="H", level="layer", mask="full", timing="kernel", baseline="torch_naive")
TIMES = {"torch_naive": 8.0, "torch_sdpa_flash": 4.0, "torch_sdpa_cudnn": 3.0, "triton_fa2": 5.0, "gluon_hopper": 2.0}
FAMILIES = {name: "pytorch" if name.startswith("torch") else "own" for name in TIMES}


@pytest.fixture
def store(store_of):
    facts = {name: {"level": "layer", "family": family} for name, family in FAMILIES.items()}
    run = Run("r", "local", created="2026-11-22T10:00:00Z", gpu_name="H", implementations=facts)
    rows = [latency(name, time, CASE) for name, time in TIMES.items()]
    parts = {"gluon_hopper": 0.5, "torch_sdpa_cudnn": 1.5}
    rows += [latency(name, time, CASE, metric="attention_ms") for name, time in parts.items()]
    rows += [latency(name, 2 * time if name != "gluon_hopper" else 8.0, LATENT) for name, time in TIMES.items()]
    rows += [latency("triton_fa2", 9.0, CASE, mode="bwd"), latency("torch_naive", 18.0, CASE, mode="bwd")]
    return store_of((run, rows))


def test_every_kind_and_mode_is_there_unless_one_is_chosen(store) -> None:
    table = layers.rows(store, SLICE)
    assert list(table["layer"].unique()) == ["gqa B2 H32 KV8 D64 S2048", "mla B2 H32 D64 S2048 latent 512"]
    assert table["mode"].tolist()[:7] == ["fwd"] * 5 + ["bwd"] * 2
    assert table["implementation"].iloc[0] == "gluon_hopper"
    chosen = replace(SLICE, workload="layer gqa", mode="bwd", implementation=("triton_fa2",))
    few = layers.rows(store, chosen)[["workload", "mode", "implementation"]]
    assert few.values.tolist() == [["layer gqa", "bwd", "triton_fa2"], ["layer gqa", "bwd", "torch_naive"]]


def test_speedups_are_over_the_baseline_and_ranges_go_from_the_lowest_to_the_highest_layer(store) -> None:
    table = layers.rows(store, SLICE).set_index(["layer", "mode", "implementation"])
    ours = table.loc[("gqa B2 H32 KV8 D64 S2048", "fwd", "gluon_hopper")]
    assert (ours["speedup"], ours["share"]) == (4.0, 25.0)
    assert table["share"].notna().sum() == 2
    assert table.loc[("gqa B2 H32 KV8 D64 S2048", "bwd", "triton_fa2"), "speedup"] == 2.0
    found = layers.ranges(layers.rows(store, SLICE), "torch_naive").set_index(["implementation", "mode"])
    ours = found.loc[("gluon_hopper", "fwd")]
    assert (ours["layers"], ours["low"], ours["high"]) == (2, 2.0, 4.0)
    assert ours["mean"] == pytest.approx(8**0.5)
    assert "torch_naive" not in found.index.get_level_values(0)


def test_our_best_stands_beside_pytorchs_best_and_where_it_is_slower_is_named(store) -> None:
    (duel,) = [row for row in layers.duels(store, SLICE).to_dict("records") if row["mode"] == "fwd"]
    assert (duel["layers"], duel["high"], duel["low"]) == (2, 1.5, 0.75)
    assert duel["attention"] == pytest.approx(3.0), "of the one layer in which both were timed alone"
    assert duel["behind"] == "mla B2 H32 D64 S2048 latent 512"
