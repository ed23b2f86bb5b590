"""The optimizers of a training step, by the names of `results.records.OPTIMIZERS`."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

_LEARNING_RATE = 1e-6  # small enough to keep weights in range over any number of timed steps


def states_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors that an optimizer keeps between steps, without parameters and gradients."""
    if isinstance(optimizer, MasterAdamW):
        return optimizer.states
    return [x for kept in optimizer.state.values() for x in kept.values() if torch.is_tensor(x)]


class MasterAdamW:
    """AdamW on float32 copies of 16-bit parameters: 12 bytes per parameter in addition to weight and gradient.

    It updates one parameter at a time, so that only one gradient is in float32 at a time.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._masters = [parameter.detach().float() for parameter in parameters]
        self._each = [_adamw([master]) for master in self._masters]

    @property
    def states(self) -> list[torch.Tensor]:
        """Return the copies and their moments."""
        return self._masters + [state for each in self._each for state in states_of(each)]

    @torch.no_grad()
    def step(self) -> None:
        """Update the copies by the gradients, and copy them to the parameters."""
        for parameter, master, optimizer in zip(self._parameters, self._masters, self._each, strict=True):
            master.grad = parameter.grad.float()
            optimizer.step()
            master.grad = None
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters:
            parameter.grad = None


def _adamw(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=True)


StepOptimizer = torch.optim.Optimizer | MasterAdamW
_KINDS: dict[str, Callable[[list[Any]], StepOptimizer]] = {
    "adamw_bf16": _adamw,
    "adamw_fp32_master": MasterAdamW,
    "sgd": partial(torch.optim.SGD, lr=_LEARNING_RATE, fused=True),
}


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> StepOptimizer:
    """Return the optimizer of that name, which allocates its states in its first step. Raises KeyError."""
    return _KINDS[name](list(parameters))
