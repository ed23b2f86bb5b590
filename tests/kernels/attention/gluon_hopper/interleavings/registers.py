"""What partitions hold in registers: tensors of nothing, and scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Value:
    """A tensor in registers; whatever is computed with it is one too."""

    def __getattr__(self, name: str) -> Any:
        return type(self)()

    def __call__(self, *arguments: Any, **named: Any) -> Value:
        return of(self, *arguments)

    def __bool__(self) -> bool:
        raise TypeError("a branch on a tensor")


class Unread(Value):
    """What is computed with a tile that was not loaded: it may be, and must not be kept."""


def of(*factors: Any) -> Value:
    """What is computed with these."""
    return Unread() if any(isinstance(x, Unread) for x in factors) else Value()


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
    setattr(Value, f"__{_name}__", of)
for _name in ("truediv", "rtruediv", "getitem"):
    setattr(Value, f"__{_name}__", of)
for _name in ("neg", "invert"):
    setattr(Value, f"__{_name}__", of)
Number.__hash__ = int.__hash__


def as_arguments(values: Iterable[Any]) -> list[Any]:
    """Return a launch's arguments as the model has them: integers as Numbers, also in named tuples."""
    return [_argument(x) for x in values]


def _argument(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return Pointer(x)
    if isinstance(x, tuple):
        return type(x)(*as_arguments(x)) if hasattr(x, "_fields") else tuple(as_arguments(x))
    return Number(x) if type(x) is int else x


class Pointer:
    """An address of integers that a kernel branches on."""

    def __init__(self, numbers: torch.Tensor, at: int = 0) -> None:
        self.numbers, self.at = numbers.flatten(), at

    def __add__(self, steps: Any) -> Pointer | Value:
        return Value() if isinstance(steps, Value) else Pointer(self.numbers, self.at + int(steps))
