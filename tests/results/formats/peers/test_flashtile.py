"""FlashTile's JSON: modules by length, Infinity for out of memory."""

import json

import pytest

from results.formats import UploadError
from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


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
