"""A route that a rule decides: implementations by name, and the built-in choice wherever they refuse."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from . import choice
from .attention.torch_sdpa import is_pytorch
from .plans import wants_gradients
from .problem import FORWARD, TRAINING
from .registry import UnsupportedCase

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Bind = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Attend]  # returns what computes such tensors
_UNMADE = object()


class Ruled:
    """Tensors whose calls, with or without gradients, go to the implementation that a rule names.

    `named` has the implementations by direction; a direction without one is left to the built-in choice. `make_plan`
    makes the built-in plan, None where there is none; `without_plan` serves then.
    """

    def __init__(self, named: dict[str, Bind], make_plan: Callable[..., Any], without_plan: Bind) -> None:
        self._named, self._make_plan, self._without_plan = named, make_plan, without_plan
        self._plan: Any = _UNMADE

    def bound(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attend:
        """Return what computes such tensors; PyTorch's function alone obeys what outranks a rule by itself."""
        way = TRAINING if wants_gradients(q, k, v) else FORWARD
        if way not in self._named:
            return self._built_in(q, k, v)
        named = self._named[way](q, k, v)
        return named if is_pytorch(named) else partial(self._attend, way, named)

    def plan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        """Return the built-in plan; None where there is none."""
        if self._plan is _UNMADE:
            self._plan = self._make_plan(q, k, v)
        return self._plan

    def _attend(self, way: str, named: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Compute by the named implementation, unless the program outranks the rule or it has refused a call."""
        if way in self._named and not choice.overridden():
            try:
                return named(q, k, v)
            except (UnsupportedCase, ImportError) as refused:
                choice.warn_once(f"The implementation that a rule names refused a call: {refused}")
                self._named.pop(way, None)
        return self._built_in(q, k, v)(q, k, v)

    def _built_in(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attend:
        plan = self.plan(q, k, v)
        return self._without_plan(q, k, v) if plan is None else plan.bound(q, k, v)
