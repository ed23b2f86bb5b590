"""What Triton's interpreter computes for nothing is left out: about half of a kernel's time, and no result."""

from __future__ import annotations

import dataclasses
from types import FunctionType

import triton.language as tl
from triton.runtime import interpreter

_patch_language = interpreter._patch_lang
_patched: set[int] = set()  # the modules that the running kernel sees patched


class _KernelScope(interpreter._LangPatchScope):
    """The patches of a running kernel; restored with it, so that the next kernel patches anew."""

    def restore(self) -> None:
        super().restore()
        _patched.clear()


def quicken() -> None:
    """Make the interpreter patch `triton.language` once a kernel and check no overflow whose answer it drops.

    Triton patches the language again at every call of a device function, though the kernel around it has done so. It
    also recomputes each sum and product of integers in 64 bits, to assert that it did not overflow; the assertion
    belongs to `debug`, which the interpreter cannot be given.
    """
    interpreter._LangPatchScope = _KernelScope
    interpreter._patch_lang = _patch_once
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once(fn: FunctionType) -> interpreter._LangPatchScope:
    seen = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
    if seen and seen <= _patched:
        return interpreter._LangPatchScope()
    scope = _patch_language(fn)
    _patched.update(seen)
    return scope
