"""What is known of a card of the GPU table: its own numbers, or those of its nearest relative."""

from dataclasses import replace
from pathlib import Path

import pytest

from results.gpus import GPUS
from results.recommend import cards
from results.records import attention_case
from results.slice import Filters
from results.store.database import Store, open_store
from tests.builders import add_run, latency

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=128, dtype="bfloat16", causal=True)
SHAPE = "16384 tokens, hidden 2048"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, shipped: Path) -> Store:
    """A store of a B200 with too few numbers, besides what ships."""
    home = tmp_path_factory.mktemp("cards")
    (home / shipped.name).write_bytes(shipped.read_bytes())
    facts = {"source": "upload", "gpu_name": "NVIDIA B200", "device_type": "cuda"}
    add_run(home, "few", latency("triton_fa2", 1.0, CASE), **facts)
    return open_store(home)


def test_every_card_has_numbers_or_a_relative_of_its_maker(store):
    for row, chip in GPUS.items():
        found = cards.known(store, row)
        assert (found.own is None) != (found.numbers > 0)
        assert found.own or (found.relative is None) == chip.compute_capability.startswith("gfx"), row


def test_own_numbers_come_first_and_a_slice_is_compared_with_the_nearest_gpu_on_the_same_shapes(store):
    assert cards.known(store, "h200 sxm").own == "NVIDIA H200"
    assert (cards.known(store, "b200").own, cards.known(store, "b200").sources) == ("NVIDIA B200", ("upload",))
    assert cards.known(store, "a100 pcie 80gb").sources == ("published",)
    chosen = Filters("NVIDIA H200", mask="causal", dtype=("bfloat16",), mode="fwd", timing="kernel", shape=SHAPE)
    other, ratios = cards.over_relative(store, chosen, "gluon_hopper")
    assert other == "NVIDIA H100 80GB HBM3" and len(ratios) > 10 and 0.9 < min(ratios) <= max(ratios) < 1.3
    assert cards.over_relative(store, chosen, "nothing") is None


def test_a_relative_is_of_the_nearest_data_sheet_without_what_cannot_run(store):
    assert cards.known(store, "rtx 3090").relative.gpu == "RTX 4060 Laptop"
    relative = cards.known(store, "gb200").relative
    assert relative.gpu == "NVIDIA H200", "a B200 has too few numbers to stand for others"
    assert set(relative.unable) == {"gluon_hopper", "gluon_fp8"} and "triton_fa2" in relative.able
    assert (relative.compute, relative.bandwidth) == (989.5 / 2500, 4800 / 8000)
    of_h200 = next(each for each in cards.relatives(store, "v100 sxm") if each.gpu == "NVIDIA H200")
    assert {"torch_sdpa_cudnn", "triton_fa2"} <= set(of_h200.unable) and "torch_sdpa_math" in of_h200.able
    assert cards.relatives(store, "a card that nobody knows") == []


@pytest.mark.parametrize(("least", "gpu"), [(1, "NVIDIA B200"), (2, "NVIDIA H200")])
def test_a_gpu_with_as_many_numbers_as_a_rule_needs_stands_for_others(store, monkeypatch, least, gpu):
    monkeypatch.setattr(cards, "_LEAST", least)
    assert cards.relative(store, "gb200").gpu == gpu


def test_a_time_is_measured_or_estimated_by_the_next_relative_that_has_one(store):
    large = replace(CASE, level="model", batch=1, num_heads=32, num_kv_heads=32, seqlen_q=8192, seqlen_k=8192)
    measured = cards.attention_time(store, "NVIDIA H200", large, "prefill")
    assert measured.implementation == "gluon_hopper" and measured.estimated_by is None
    estimate = cards.attention_time(store, "rtx 3090", large, "prefill")
    assert estimate.estimated_by == "NVIDIA H100 80GB HBM3", "the RTX 4060 has no head_dim of 128"
    assert estimate.implementation != "gluon_hopper" and estimate.layer_ms > 5 * measured.layer_ms
    assert cards.attention_time(store, "mi300x", large, "prefill") is None
