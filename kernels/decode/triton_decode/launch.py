"""A kernel with its grid, scalars and constants fixed, launched with little host work.

`JITFunction.run` binds and hashes every argument of every call, 13 us and more of Python; a DecodeLaunch keeps the
compiled kernel and calls it directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import torch
import triton
from triton.runtime.errors import OutOfResources

from kernels.registry import UnsupportedCase

INTERPRETED = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1 when this was imported


class DecodeLaunch:
    """Compiles for tensors like `pointers`, then takes a stream and tensors that differ only in their addresses."""

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        pointers: Sequence[torch.Tensor],
        scalars: Sequence[int | float],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        constants = {name: constants[name] for name in kernel.arg_names if name in constants}
        self._grid = grid
        if INTERPRETED:
            self._interpreted = partial(_interpret, kernel, grid, tuple(scalars), constants)
            return
        self._interpreted = None
        warm_up = partial(kernel.warmup, *pointers, *scalars, grid=(1,), **constants, **options)
        made = Context().run(warm_up)  # outside of any AsyncCompileMode that the caller is in
        try:
            self._run = made.run  # loads the kernel, which is when Triton checks what it needs against the device
        except OutOfResources as error:
            raise UnsupportedCase(
                f"The tile of {kernel.__name__} needs {error.required} of a block's {error.name}, and this device has "
                f"{error.limit}; use a smaller head_dim or a 16-bit dtype."
            ) from error
        self._function, self._metadata = made.function, made.packed_metadata
        self._rest = (*scalars, *constants.values())

    def __call__(self, stream: int, *pointers: torch.Tensor) -> None:
        if self._interpreted is not None:
            self._interpreted(*pointers)
            return
        self._run(*self._grid, stream, self._function, self._metadata, None, None, None, *pointers, *self._rest)


def _interpret(kernel: Any, grid: Any, scalars: tuple[Any, ...], constants: dict[str, Any], *pointers: Any) -> None:
    kernel[grid](*pointers, *scalars, **constants)
