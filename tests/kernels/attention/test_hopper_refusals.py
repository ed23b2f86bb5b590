"""What the implementations for compute capability 9.0 say of cases and machines that are not theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels import registry
from results.records import attention_case
from tests.cases import cases

CASE = attention_case(batch=1, num_heads=8, seqlen=128, head_dim=128, dtype="bfloat16", causal=False)
H200 = registry.Device(type="cuda", name="H200", compute_capability=(9, 0))
NAMES = ("gluon_hopper", "gluon_fp8")


def reason_of(name: str, device: registry.Device = H200, **changes: Any) -> str | None:
    implementation = registry.get(name)
    if implementation.unavailable:
        pytest.skip(implementation.unavailable)
    return implementation.reason_against(replace(CASE, **changes), device)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device, reason", cases(__file__, "test_another_machine_is_named"))
def test_another_machine_is_named(name: str, device: dict, reason: str) -> None:
    assert reason_of(name) is None
    assert reason in reason_of(name, replace(H200, **device))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("changes", "reason"), [({"dtype": "float32"}, "float32"), ({"head_dim": 520, "head_dim_v": 520}, "head_dim 520")]
)
def test_another_dtype_or_head_dim_is_named(name: str, changes: dict, reason: str) -> None:
    assert reason in reason_of(name, **changes)


def test_values_of_another_head_dim_causal_masks_and_windows_are_refused_by_those_without_them() -> None:
    assert reason_of("gluon_hopper", head_dim=192) is None
    assert "head_dim_v" in reason_of("gluon_hopper", head_dim_v=64)
    assert "head_dim_v" in reason_of("gluon_hopper", head_dim=256)
    assert "later tokens would change earlier rows; use gluon_hopper" in reason_of("gluon_fp8", causal=True)
    assert "values of another head_dim" in reason_of("gluon_fp8", head_dim_v=64)
    assert "sliding windows" in reason_of("gluon_fp8", window_size=100)
