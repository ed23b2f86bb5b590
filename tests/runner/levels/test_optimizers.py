"""Optimizers of a training step: what they keep, and that float32 copies see what 16 bits would lose."""

import pytest
import torch

from results.records import OPTIMIZERS
from runner.levels.model import make_optimizer, states_of


def stepped(name: str, dtype: torch.dtype, steps: int = 3) -> tuple[torch.nn.Parameter, object]:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 64, dtype=torch.float32).to(dtype))
    optimizer = make_optimizer(name, [weight])
    for step in range(steps):
        weight.grad = torch.full_like(weight, 1.0 + step)
        optimizer.step()
    return weight, optimizer


@pytest.mark.parametrize(("name", "bytes_a_parameter"), [("sgd", 0), ("adamw_bf16", 4), ("adamw_fp32_master", 12)])
def test_states_are_as_large_as_the_memory_formula_says(name: str, bytes_a_parameter: int) -> None:
    _, optimizer = stepped(name, torch.bfloat16)
    large = [state for state in states_of(optimizer) if state.numel() > 1]
    assert sum(state.numel() * state.element_size() for state in large) == 64 * bytes_a_parameter


def test_every_optimizer_that_a_case_can_name_exists() -> None:
    for name in OPTIMIZERS:
        if name != "none":
            assert make_optimizer(name, [torch.nn.Parameter(torch.ones(2))])


def test_float32_copies_follow_adamw_in_float32() -> None:
    expected, _ = stepped("adamw_bf16", torch.float32)  # moments in the weights' dtype, which is float32 here
    start = torch.linspace(-1, 1, 64).to(torch.bfloat16)
    weight, optimizer = stepped("adamw_fp32_master", torch.bfloat16)
    moved, wanted = states_of(optimizer)[0] - start.float(), expected.detach() - torch.linspace(-1, 1, 64)
    torch.testing.assert_close(moved, wanted, rtol=2e-2, atol=1e-8)
    assert torch.equal(weight, start)  # the steps are too small for 16 bits


def test_gradients_are_freed() -> None:
    for name in ("sgd", "adamw_bf16", "adamw_fp32_master"):
        weight, optimizer = stepped(name, torch.float32)
        optimizer.zero_grad()
        assert weight.grad is None
