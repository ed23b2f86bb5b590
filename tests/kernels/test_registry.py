"""What implementations declare, and how the registry answers for them."""

import dataclasses
import json

import pytest

from kernels import registry
from results.records import Case

CPU = registry.Device(type="cpu", name="CPU")
OP = Case(level="op", num_heads=2, num_kv_heads=2, seqlen_q=8, seqlen_k=8, head_dim=16, dtype="float32", causal=False)


@pytest.mark.parametrize("level", registry.FOLDERS)
def test_every_implementation_declares_the_level_of_its_folder_and_a_known_family(level: str) -> None:
    for name, implementation in registry.implementations(level).items():
        assert (implementation.name, implementation.level) == (name, level)
        assert implementation.family in ("pytorch", "own", "peer")
        assert implementation.precision in (None, "tf32", "fp8")
        assert implementation.compiled in (None, "ahead", "first_call")


def test_a_case_of_another_level_and_an_unknown_name_or_level_are_told_with_what_is_possible() -> None:
    naive = registry.get("torch_naive")
    assert naive.reason_against(OP, CPU) is None
    reason = naive.reason_against(dataclasses.replace(OP, level="decode", seqlen_q=1), CPU)
    assert reason == "torch_naive computes cases of level op, not of level decode."
    with pytest.raises(KeyError, match="'nothing' at level op. Available: .*torch_naive"):
        registry.get("nothing")
    with pytest.raises(KeyError, match="Levels: op, decode, layer"):
        registry.implementations("cluster")


@pytest.mark.parametrize("field", ["page_size", "latent_dim"])
def test_a_cache_that_an_implementation_does_not_declare_is_refused(field: str) -> None:
    assert "caches" in registry.get("torch_naive").reason_against(dataclasses.replace(OP, **{field: 16}), CPU)


def test_facts_survive_json_and_say_who_keeps_a_matrix() -> None:
    for implementation in registry.implementations().values():
        assert json.loads(json.dumps(implementation.facts)) == implementation.facts
    found = {name for name, i in registry.implementations().items() if i.materialises_scores}
    assert found == {"torch_naive", "torch_sdpa_math"}
