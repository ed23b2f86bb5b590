"""A route that a rule decides: implementations by name, and the built-in choice wherever they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import choice
from .plans import wants_gradients
from .problem import FORWARD, TRAINING
from .registry import UnsupportedCase

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Ruled:
    """Tensors whose calls, with or without gradients, go to the implementation that a rule names.

    `make_plan` makes the built-in plan, None where there is none; `without_plan` computes without it.
    """

    def __init__(self, named: dict[str, Attend], make_plan: Callable[..., Any], without_plan: Attend) -> None:
        """Keep the callables by direction; a direction without one is left to the built-in choice."""
        self._make_plan, self._without_plan = make_plan, without_plan
        self._plan: Any = None
        self._made = False
        self._forward = named.get(FORWARD, self._built_in)
        self._training = named.get(TRAINING, self._built_in)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Compute attention as `kernels.plans.attend`."""
        if choice.overridden():
            return self._built_in(q, k, v)
        training = wants_gradients(q, k, v)
        named = self._training if training else self._forward
        try:
            return named(q, k, v)
        except (UnsupportedCase, ImportError) as refused:
            if named == self._built_in:
                raise
            choice.warn_once(f"The implementation that a rule names refused a call: {refused}")
            if training:
                self._training = self._built_in
            else:
                self._forward = self._built_in
        return self._built_in(q, k, v)

    def plan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        """Return the built-in plan; None where there is none."""
        if not self._made:
            self._plan = self._make_plan(q, k, v)
            self._made = True
        return self._plan

    def _built_in(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        plan = self.plan(q, k, v)
        return self._without_plan(q, k, v) if plan is None else plan.attend(q, k, v)
