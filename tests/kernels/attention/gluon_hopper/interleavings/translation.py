"""Triton's jit functions as plain Python, in which names of the hardware mean a model of it."""

from __future__ import annotations

import ast
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType
from typing import Any

from triton.experimental.gluon import language as gl

from tests.kernels.attention.gluon_hopper.interleavings.registers import Number, Value, of

REGISTERS_ONLY = frozenset(  # functions that compute in registers and do nothing else
    ["by_lane", "of_lanes", "first_softmax", "_softmax", "_softmax_per_lane", "_softmax_without_max"]
    + ["_probabilities", "_rescale_by_sum", "rescale", "renormalise_sums", "packed_powers", "opaque"]
    + ["unpacked"]
)


def as_python(function: Any, hardware: dict[str, Any]) -> Callable[..., Any]:
    """The function, and whatever it calls."""
    plain = function.fn
    if plain.__name__ in REGISTERS_ONLY:
        return _of_registers(_returned(plain))
    made = FunctionType(plain.__code__, _Names(hardware, plain.__globals__), plain.__name__, plain.__defaults__)
    made.__kwdefaults__ = plain.__kwdefaults__
    return made


class _Names(dict):
    """A kernel module's names: hardware becomes the model's, jit functions become Python."""

    def __init__(self, hardware: dict[str, Any], real: dict[str, Any]) -> None:
        super().__init__()
        self._hardware, self._real = hardware, real

    def __missing__(self, name: str) -> Any:
        if name in self._hardware:
            found = self._hardware[name]
        elif name in self._real:
            found = self._real[name]
        else:
            raise KeyError(name)
        if isinstance(found, gl.constexpr):
            found = found.value
        elif type(found).__name__ == "GluonJITFunction":
            found = as_python(found, self._hardware)
        elif type(found).__name__ == "ConstexprFunction":
            found = _unless_of_values(found)
        self[name] = found
        return found


def _unless_of_values(function: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return Value() if any(isinstance(x, Value) for x in arguments) else function.fn(*arguments)

    return call


def numbers(*bounds: int) -> Iterator[Number]:
    """A range of scalars."""
    return map(Number, range(*map(operator.index, bounds)))


def _of_registers(count: int) -> Callable[..., Any]:
    def compute(*arguments: Any, **named: Any) -> Any:
        return of(*arguments) if count == 1 else (of(*arguments),) * count

    return compute


@cache
def _returned(function: Callable[..., Any]) -> int:
    """How many values it returns."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    answers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return len(answers[0].elts) if isinstance(answers[0], ast.Tuple) else 1
