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

from ...parallel_compile import launcher
from ...plans import PlanCache
from ...registry import UnsupportedCase

INTERPRETED = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1 when this was imported


_COMPILED: PlanCache[Any] = PlanCache()


class DecodeLaunch:
    """Compiles for tensors like those given, then takes a stream and the addresses of others."""

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        tensors: Sequence[torch.Tensor | None],
        scalars: Sequence[Any],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        constants = {name: constants[name] for name in kernel.arg_names if name in constants}
        self._grid = grid
        if INTERPRETED:
            self._interpreted = partial(_interpret, kernel, grid, tuple(scalars), constants)
            return
        self._interpreted = None
        made = _compiled(kernel, tensors, scalars, constants, options)
        self._run, self._first = launcher(made)
        self._rest = (*scalars, *constants.values())

    def __call__(self, stream: int, arguments: tuple[Any, ...]) -> None:
        """Launch with addresses, None where there is no tensor; the interpreter wants the tensors themselves."""
        if self._interpreted is not None:
            self._interpreted(*arguments)
            return
        self._run(*self._grid, stream, *self._first, *arguments, *self._rest)


def _compiled(
    kernel: Any,
    tensors: Sequence[torch.Tensor | None],
    scalars: Sequence[Any],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """Return Triton's CompiledKernel, found again by all that Triton specialises a kernel on.

    While text is generated a cache has another length at every token, and Triton's own look-up takes longer.
    """
    forms = tuple((x.dtype, x.device, x.data_ptr() & 15) if x is not None else None for x in tensors)
    key = (kernel, forms, _specialized(scalars), tuple(constants.items()), tuple(options.items()))
    made = _COMPILED.get(key)
    if made is None:
        warm_up = partial(kernel.warmup, *tensors, *scalars, grid=(1,), **constants, **options)
        made = Context().run(warm_up)  # outside of any AsyncCompileMode that the caller is in
        try:
            made.run  # noqa: B018 - loads the kernel, which is when Triton checks what it needs against the device
        except OutOfResources as error:
            raise UnsupportedCase(
                f"The tile of {kernel.__name__} needs {error.required} of a block's {error.name}, and this device has "
                f"{error.limit}; use a smaller head_dim or a 16-bit dtype."
            ) from error
        _COMPILED.remember(key, made)
    return made


def _specialized(scalars: Sequence[Any]) -> tuple[Any, ...]:
    """Return what Triton may specialise on of numbers, and of those in tuples."""
    return tuple(
        [
            _specialized(x) if isinstance(x, tuple) else (x % 16 == 0, x == 1, x >> 31) if isinstance(x, int) else None
            for x in scalars
        ]
    )


def _interpret(kernel: Any, grid: Any, scalars: tuple[Any, ...], constants: dict[str, Any], *tensors: Any) -> None:
    kernel[grid](*tensors, *scalars, **constants)
