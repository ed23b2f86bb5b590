"""The time of a model's attention, from the nearest measured shapes."""

from dataclasses import replace

import pytest

from results.levels.model_table import model
from results.recommend import model_attention
from results.records import Case, attention_case, decode_case
from tests.builders import add_run, latency

LLAMA = model("llama3-8b")


def _asked(seqlen_q: int, seqlen_k: int, **more) -> Case:
    sizes = {"num_heads": LLAMA.heads, "num_kv_heads": LLAMA.kv_heads, "head_dim": 128, "head_dim_v": 128}
    given = {"level": "model", "subject": "llama3-8b", "batch": 1, "dtype": "bfloat16", "causal": True}
    return Case(**sizes, **given, seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_layers=32, **more)


@pytest.fixture
def store(home, opened):
    op = attention_case(batch=1, num_heads=16, seqlen=4096, head_dim=128, dtype="bfloat16", causal=True)
    far = replace(op, seqlen_q=512, seqlen_k=512)
    chunk = replace(op, seqlen_q=256, seqlen_k=8192)
    step = decode_case(batch=1, num_heads=32, num_kv_heads=8, context=16384, head_dim=128, dtype="bfloat16")
    paged = replace(step, page_size=16)
    times = (
        *((op, "steady", "fwd", 1.0), (op, "steady", "bwd", 3.0), (op, "forward_only", "fwd", 0.5)),
        *((far, "steady", "fwd", 0.001), (far, "steady", "bwd", 0.001), (op, "quick_fp8", "fwd", 0.1)),
        *((step, "reader", "decode", 0.02), (paged, "pager", "decode", 0.001)),
        *((chunk, "chunked", "fwd", 0.001), (chunk, "chunked", "bwd", 0.001)),
    )
    rows = [latency(name, ms, case, mode=mode) for case, name, mode, ms in times]
    add_run(home, "a", *rows, device_type="cuda")
    return opened()


def test_training_takes_who_has_both_passes_scales_by_operations_and_recomputes_the_forward(store):
    found = model_attention.fastest(store, "A GPU", _asked(8192, 8192), "train")
    assert (found.implementation, found.measured.seqlen_k) == ("steady", 4096)
    assert found.factor == pytest.approx(8, rel=0.001)  # twice the heads, four times the pairs
    assert found.layer_ms == pytest.approx(8 * (1.0 + 3.0), rel=0.001)
    found = model_attention.fastest(store, "A GPU", _asked(8192, 8192, checkpointing=True), "train")
    assert found.layer_ms == pytest.approx(8 * (1.0 + 1.0 + 3.0), rel=0.001)


def test_a_doubled_sequence_is_twice_as_far_as_twice_the_heads_or_another_group():
    of = attention_case(batch=2, num_heads=16, num_kv_heads=4, seqlen=1024, head_dim=64, dtype="bfloat16", causal=True)
    changes = [{}, {"seqlen_k": 2048}, {"batch": 4}, {"batch": 1}, {"num_kv_heads": 8}]
    changes.append({"num_heads": 32, "num_kv_heads": 8})
    distances = [model_attention._distance(replace(of, **change), of) for change in changes]
    assert distances == [0, 1, 0.5, 0.5, 0.5, 0.5]


def test_no_other_precision_cache_or_part_of_a_prompt_stands_for_a_step(store):
    assert model_attention.fastest(store, "A GPU", _asked(4096, 4096), "prefill").implementation == "forward_only"
    found = model_attention.fastest(store, "A GPU", _asked(1, 32768), "decode")
    assert found.implementation == "reader"
    assert found.layer_ms == pytest.approx(0.04, rel=0.01)
    for step in ("train", "prefill"):
        assert model_attention.fastest(store, "A GPU", _asked(8192, 8192), step).implementation != "chunked"
    assert model_attention.fastest(store, "Another GPU", _asked(8192, 8192), "train") is None
    assert model_attention.fastest(store, "A GPU", replace(_asked(8192, 8192), dtype="float16"), "train") is None
    assert "A GPU" in model_attention.gpus(store)


def test_an_upload_of_one_kernel_does_not_replace_the_winner_of_several(home, store):
    sizes = {"batch": 1, "num_heads": 32, "num_kv_heads": 8, "seqlen": 8192, "head_dim": 128}
    exact = attention_case(**sizes, dtype="bfloat16", causal=True)
    add_run(home, "b", latency("alone", 90.0, exact), source="upload", device_type="cuda")
    store.refresh()
    found = model_attention.fastest(store, "A GPU", _asked(8192, 8192), "prefill")
    assert (found.implementation, found.compared, found.source) == ("forward_only", 2, "local")
