"""What partitions hold in registers: tensors of nothing, and scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.kernels.side_by_side.memory import Broken


class Value:
    """A tensor in registers; whatever is computed with it is one too."""

    def __getattr__(self, name: str) -> Any:
        return Value()

    def __call__(self, *arguments: Any, **named: Any) -> Value:
        return Value()

    def __bool__(self) -> bool:
        raise TypeError("a branch on a tensor")


class Unread(Value):
    """A product of a tile that was not loaded: it may be begun, and not be used."""

    def __getattr__(self, name: str) -> Any:
        raise Broken("a tile is read before it is loaded")


class Number(int):
    """A scalar, with what Triton's have beside an int's."""

    def to(self, dtype: Any) -> Number:
        """The same."""
        return self


def _computed(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def compute(self: int, other: Any) -> Any:
        if name in ("__floordiv__", "__mod__") and not isinstance(other, Value) and not other:
            return Number(-1)  # a GPU goes on: kernels divide by the width of a group that is beyond the last
        answer = plain(self, int(other)) if isinstance(other, int) else NotImplemented
        return Number(answer) if isinstance(answer, int) else answer

    return compute


_OPERATIONS = ["add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"]
for _name in [*_OPERATIONS, *(f"r{name}" for name in _OPERATIONS), *["lt", "le", "gt", "ge", "eq", "ne"]]:
    if hasattr(int, f"__{_name}__"):
        setattr(Number, f"__{_name}__", _computed(f"__{_name}__"))
    setattr(Value, f"__{_name}__", lambda self, other: Value())
for _name in ("truediv", "rtruediv", "getitem"):
    setattr(Value, f"__{_name}__", lambda self, other: Value())
for _name in ("neg", "invert"):
    setattr(Value, f"__{_name}__", lambda self: Value())
Number.__hash__ = int.__hash__


class Pointer:
    """An address of integers that a kernel branches on."""

    def __init__(self, numbers: torch.Tensor, at: int = 0) -> None:
        self.numbers, self.at = numbers.flatten(), at

    def __add__(self, steps: Any) -> Pointer | Value:
        return Value() if isinstance(steps, Value) else Pointer(self.numbers, self.at + int(steps))
