"""FlashTile's JSON: modules by length, Infinity for out of memory."""

import json

import pytest

from results.formats import UploadError
from results.records import Case, Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


def test_a_module_is_a_layer_with_what_the_configuration_says() -> None:
    found = understood("flashtile_a100.json")
    (first, *_) = found.measurements
    assert (found.format, found.rejected) == ("flashtile", ())
    assert first.case == Case(
        level="layer",
        subject="mha_fused_bias",
        batch=4,
        num_heads=12,
        num_kv_heads=12,
        seqlen_q=256,
        seqlen_k=256,
        head_dim=64,
        head_dim_v=64,
        dtype="float32",
        causal=True,
        window_size=0,
        page_size=0,
        latent_dim=0,
    )
    assert (first.value, first.std, first.timing, first.mode) == (
        0.7613519997903495,
        0.007561537730629129,
        "eager",
        "fwd",
    )


def test_speedups_and_reductions_are_over_naive_and_naive_has_none() -> None:
    found = understood("flashtile_a100.json")
    ratios = numbers(found, "speedup") + numbers(found, "memory_reduction")
    assert {(m.implementation, m.baseline) for m in ratios} == {
        ("GQA (FlashTile)", "Naive (FlashTile)"),
        ("Triton (FlashTile)", "Naive (FlashTile)"),
    }
    assert {m.case.subject for m in ratios if m.implementation.startswith("GQA")} == {"gqa_bias"}


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
        (("results", "Naive", "time_ms"), [0.7, -1]),
        (("results", "Naive", "time_ms"), [0.7, "fast"]),
        (("results", "Naive", "time_ms"), [0.7]),
        (("results", "Naive", "seq_lengths"), [256, 10**12]),
        (("results", "Naive", "seq_lengths"), [256, True]),
    ],
)
def test_an_entry_that_cannot_be_is_refused_alone(path: tuple[str, ...], value: object) -> None:
    document = json.loads(excerpt("flashtile_a100.json"))
    document[path[0]][path[1]][path[2]] = value
    found = understood("", json.dumps(document).encode())
    assert [r.line for r in found.rejected] == [2] and len(numbers(found, "latency_ms")) == 5


def test_a_width_that_the_heads_do_not_divide_refuses_every_entry() -> None:
    data = excerpt("flashtile_a100.json").replace(b'"embed_dim": 768', b'"embed_dim": 769')
    found = understood("", data)
    assert len(found.rejected) == 6 and found.measurements == ()


def test_json_cut_off_is_refused() -> None:
    with pytest.raises(UploadError):
        understood("", excerpt("flashtile_a100.json")[:-20])
