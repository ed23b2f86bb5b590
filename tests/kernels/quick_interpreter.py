"""What Triton's interpreter computes for nothing is left out: about half of a kernel's time, and no result."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_patch_language = interpreter._patch_lang
_patched: set[int] = set()  # the modules that the running kernel sees patched
_type_of_block = tl.core.block_type.__init__
_np_dtype = functools.cache(interpreter._get_np_dtype)  # of an element
_ADDRESS = interpreter._get_np_dtype(tl.pointer_type(tl.int8))
_blocks: dict[tuple[str, tuple[Any, ...]], dict[str, Any]] = {}  # what a block's type holds, by element and shape
_shapes: dict[tuple[Any, ...], Any] = {}  # one object for all blocks of a shape
_semantic = interpreter.interpreter_semantic
_broadcast, _cast = _semantic.broadcast_impl_value, _semantic.cast


class _KernelScope(interpreter._LangPatchScope):
    """The patches of a running kernel; restored with it, so that the next kernel patches anew."""

    def restore(self) -> None:
        super().restore()
        _patched.clear()


def quicken() -> None:
    """Make the interpreter patch `triton.language` once a kernel and check no overflow whose answer it drops.

    Triton patches the language again at every call of a device function, though the kernel around it has done so. It
    also recomputes each sum and product of integers in 64 bits, to assert that it did not overflow; the assertion
    belongs to `debug`, which the interpreter cannot be given. It makes the parts of a type anew for each tensor, which
    takes longer than most sums: they are made once for each shape. Operands of one shape or type are neither broadcast
    nor cast, which Triton finds by comparing each size as a constant of its own, and types by their names.
    """
    interpreter._LangPatchScope = _KernelScope
    interpreter._patch_lang = _patch_once
    interpreter._get_np_dtype = lambda kind: _ADDRESS if kind.scalar.is_ptr() else _np_dtype(kind.scalar)
    tl.core.block_type.__init__, tl.core.tensor.__init__ = _begin_block_type, _begin_tensor
    _semantic.broadcast_impl_value, _semantic.cast = _of_one_shape, _of_one_type
    _semantic.computation_type_impl = functools.cache(_semantic.computation_type_impl)
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once(fn: FunctionType) -> interpreter._LangPatchScope:
    seen = _languages(fn)
    if seen and seen <= _patched:
        return interpreter._LangPatchScope()
    scope = _patch_language(fn)
    _patched.update(seen)
    return scope


@functools.cache
def _languages(fn: FunctionType) -> frozenset[int]:
    return frozenset(id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)


def _begin_block_type(self: tl.block_type, element_ty: tl.dtype, shape: Sequence[Any]) -> None:
    key = element_ty.name, tuple(shape)
    if key not in _blocks:
        _type_of_block(self, element_ty, shape)
        self.shape = _shapes.setdefault(key[1], self.shape)
        self.sizes = _sizes(self.shape)
        _blocks[key] = dict(vars(self))
    self.__dict__.update(_blocks[key])


def _of_one_shape(lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    shapes = (x.type.shape if x.type.is_block() else None for x in (lhs, rhs))
    return (lhs, rhs) if operator.is_(*shapes) else _broadcast(lhs, rhs)


def _of_one_type(value: tl.tensor, wanted: tl.dtype, *rounding: str | None, **named: str | None) -> tl.tensor:
    return value if value.dtype is wanted.scalar else _cast(value, wanted, *rounding, **named)


def _begin_tensor(self: tl.tensor, handle: Any, type: tl.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = type.sizes if type.is_block() else _OF_SCALARS


def _sizes(shape: Sequence[int]) -> tuple[tl.constexpr, tl.tuple]:
    return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])


_OF_SCALARS = _sizes(())
