"""What is known of an implementation: what its run recorded comes first, what is not possible counts as not said."""

import pytest

from results.implementations import FP8, facts_of
from results.levels.memory import MemoryLaw, WorkspaceLaw
from tests.cases import cases


def test_what_a_run_recorded_comes_before_the_table_and_a_precision_is_declared_or_of_it() -> None:
    declared = {"triton_fa2": {"colour": "#123456", "precision": None, "memory": {"growth": "matrix"}}}
    assert facts_of("triton_fa2").colour == "#e69f00"
    assert facts_of("triton_fa2", declared).colour == "#123456"
    assert facts_of("triton_fa2", declared).memory == MemoryLaw("matrix")
    facts = facts_of("mine", {"mine": {"precision": "fp8"}})
    assert facts.multiplies("bfloat16") == FP8
    assert not facts.tf32
    assert facts_of("gluon_fp8").multiplies("float16") == FP8
    assert facts_of("gluon_fp8").memory.fwd == WorkspaceLaw(quantised_rows=128, quantised_head_dims=(64, 128, 256))


@pytest.mark.parametrize("name", ["triton_fa2_tf32", "anything_tf32"])
def test_names_end_with_a_precision_that_nobody_declared(name: str) -> None:
    assert facts_of(name).tf32
    assert facts_of(name).reduced
    assert facts_of(name).multiplies("float32") == "float32"
    assert not facts_of(name, {name: {"precision": None}}).reduced


@pytest.mark.parametrize("said", cases(__file__, "test_what_is_not_possible_counts_as_not_said"))
def test_what_is_not_possible_counts_as_not_said(said: dict) -> None:
    facts = facts_of("mine", {"mine": said})
    assert (facts.colour, facts.memory, facts.precision, facts.family) == (None, MemoryLaw(), None, None)


@pytest.mark.parametrize(
    ("name", "dtype", "head_dim", "gpu", "multiplies"),
    cases(__file__, "test_what_bounds_the_speed_is_what_the_products_take"),
)
def test_what_bounds_the_speed_is_what_the_products_take(name, dtype, head_dim, gpu, multiplies):
    assert facts_of(name).multiplies(dtype, head_dim, gpu) == multiplies
    assert facts_of("triton_fa2").precision is None, "as accurate as float32, so it may win its column"
