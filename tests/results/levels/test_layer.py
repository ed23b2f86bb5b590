"""Formulas of layers, held against the figures of one worked out by hand."""

from collections import defaultdict
from dataclasses import replace

import pytest

from results import levels
from results.files import columns
from results.implementations import facts_of
from results.levels import level_of
from results.paths import PUBLISHED
from results.records import Case, layer_case

# Configuration 2 of report attention_layers_a100: 4096 tokens, hidden 4096.
MHA = layer_case(
    "mha_fused", batch=1, num_heads=32, num_kv_heads=32, seqlen=4096, head_dim=128, dtype="float16", causal=False
)
GQA = replace(MHA, subject="gqa", num_kv_heads=8)
MLA = replace(MHA, subject="mla", num_heads=64, num_kv_heads=64, latent_dim=1024)
TERA, MIB = 1e12, 2**20


def test_operations_are_those_of_projections_and_attention() -> None:
    projections, attention = 2 * 4096 * 4 * 4096**2, 4 * 32 * 4096**2 * 128
    assert levels.flops(MHA, "fwd") == projections + attention
    assert levels.flops(MHA, "fwd") / TERA == pytest.approx(0.55 + 0.275, rel=0.01)
    assert levels.flops(MHA, "bwd") == 2 * projections + 2.5 * attention
    assert levels.flops(MHA, "fwd_bwd") == 3 * projections + 3.5 * attention
    causal = levels.flops(replace(MHA, causal=True), "fwd") - projections
    assert causal == pytest.approx(attention / 2, rel=0.001)


def test_fewer_key_heads_and_a_latent_have_smaller_projections_and_a_published_layer_has_neither() -> None:
    grouped = 2 * 4096 * (2 * 4096**2 + 2 * 4096 * 8 * 128)
    assert levels.flops(GQA, "fwd") - levels.flops(MHA, "fwd") == grouped - 2 * 4096 * 4 * 4096**2
    hidden = 64 * 128
    projections = 2 * 4096 * (2 * hidden**2 + hidden * 1024 + 1024 * 2 * hidden)
    assert levels.flops(MLA, "fwd") == projections + 4 * 64 * 4096**2 * 128
    assert levels.flops(replace(GQA, num_kv_heads=None), "fwd") is None
    assert levels.flops(replace(MLA, latent_dim=None), "fwd") is None
    assert levels.flops(replace(MLA, num_kv_heads=None), "fwd") == levels.flops(MLA, "fwd")
    assert levels.flops(replace(MHA, causal=None), "fwd") is None
    assert levels.flops(Case(level="layer", subject=None), "fwd") is None


def test_bytes_count_what_passes_between_kernels() -> None:
    tokens, hidden, weights = 4096, 4096, 4 * 4096**2
    forward = 2 * tokens * hidden + weights + 2 * (3 * tokens * hidden + tokens * hidden)
    assert levels.bytes_moved(MHA, "fwd") == 2 * forward
    both = levels.bytes_moved(MHA, "fwd_bwd")
    assert both == levels.bytes_moved(MHA, "fwd") + levels.bytes_moved(MHA, "bwd")
    assert levels.bytes_moved(GQA, "fwd") < levels.bytes_moved(MHA, "fwd")


def test_a_matrix_costs_memory_and_weights_are_given() -> None:
    naive, ours = (levels.memory_parts(MHA, facts_of(name).memory, "fwd") for name in ("torch_naive", "triton_fa2"))
    given = 2 * (4096 * 4096 + 4 * 4096**2) / MIB
    assert naive.given == ours.given == given
    assert naive.matrices == 2 * 2 * 32 * 4096**2 / MIB
    assert ours.matrices == 0
    assert naive.peak - ours.peak > 0.9 * naive.matrices
    both = levels.memory_parts(MHA, facts_of("triton_fa2").memory, "fwd_bwd")
    assert both.given == given + 2 * 4096 * 4096 / MIB
    assert both.peak > ours.peak + 4 * 4096**2 * 2 / MIB  # the weights' gradients


@pytest.mark.parametrize("field", ["num_heads", "head_dim", "batch", "seqlen_q"])
def test_what_leaves_a_size_open_has_no_operations(field: str) -> None:
    assert levels.flops(replace(MHA, num_kv_heads=None, **{field: None}), "fwd") is None
    assert levels.bytes_moved(replace(MHA, num_kv_heads=None, **{field: None}), "fwd") is None


def test_the_map_is_seqlen_by_heads() -> None:
    level = level_of(MHA)
    assert (level.columns.field, level.rows.field) == ("seqlen_q", "num_heads")
    assert level.words(GQA) == "gqa, batch 1, heads 32 over 8, seqlen 4096, head_dim 128, float16"
    assert level.short(MLA) == "mla B1 H64 D128 S4096 float16 full latent 1024"


def test_the_predicted_memory_is_what_an_h200_measured() -> None:
    ratios = defaultdict(list)
    for row in columns.read(PUBLISHED / "h200-attention_layers" / columns.NAME):
        if row["metric"] == "peak_memory_mb" and row["value"]:
            parts = levels.memory_parts(row, facts_of(row["implementation"]).memory, row["mode"])
            ratios[row["mode"]].append(parts.peak / row["value"])
    assert len(ratios["fwd"]) == len(ratios["fwd_bwd"]) > 50
    assert 0.97 < min(ratios["fwd"]) < max(ratios["fwd"]) < 1.02
    assert 0.83 < min(ratios["fwd_bwd"]) < max(ratios["fwd_bwd"]) < 1.14
