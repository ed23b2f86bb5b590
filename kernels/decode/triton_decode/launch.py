"""Launches of decoding kernels, whose compiled kernels are found again while a cache grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from ...launches import INTERPRETED, InterpretedLaunch, PreparedLaunch
from ...plans import PlanCache
from ...registry import UnsupportedCase

# kernel, grid, scalars, constants and compiler options of a launch
LaunchOf = tuple[Any, tuple[int, int, int], tuple[Any, ...], dict[str, Any], dict[str, Any]]
_COMPILED: PlanCache[Any] = PlanCache()


class DecodeLaunch:
    """A launch compiled for tensors like those given.

    `at` takes a stream and the addresses of other tensors, None where there is no tensor; in the interpreter it takes
    the tensors themselves.
    """

    def __init__(self, launch: LaunchOf, tensors: Sequence[torch.Tensor | None]) -> None:
        kernel, grid, scalars, constants, options = launch
        constants = {name: constants[name] for name in kernel.arg_names if name in constants}
        if INTERPRETED:
            self.at: Callable[..., None] = InterpretedLaunch(kernel, grid, scalars, constants).at
        else:
            made = _compiled((kernel, grid, scalars, constants, options), tensors)
            self.at = PreparedLaunch(made, grid, scalars, constants).at


def _compiled(launch: LaunchOf, tensors: Sequence[torch.Tensor | None]) -> Any:
    """Return Triton's CompiledKernel, cached by everything that Triton specializes a kernel on.

    The length of a cache changes with every generated token, and Triton's own lookup takes longer.
    """
    kernel, _, scalars, constants, options = launch
    forms = tuple((x.dtype, x.device, x.data_ptr() & 15) if x is not None else None for x in tensors)
    key = (kernel, forms, _specialized(scalars), tuple(constants.items()), tuple(options.items()))
    made = _COMPILED.get(key)
    if made is None:
        warm_up = partial(kernel.warmup, *tensors, *scalars, grid=(1,), **constants, **options)
        made = Context().run(warm_up)  # not in an AsyncCompileMode of the caller
        try:
            made.run  # noqa: B018 - loads the kernel, which is when Triton checks its needs against the device
        except OutOfResources as error:
            raise UnsupportedCase(
                f"The tile of {kernel.__name__} needs {error.required} of a block's {error.name}, and this device has "
                f"{error.limit}; use a smaller head_dim or a 16-bit dtype."
            ) from error
        _COMPILED.remember(key, made)
    return made


def _specialized(scalars: Sequence[Any]) -> tuple[Any, ...]:
    """Return the properties of numbers, also within tuples, that Triton may specialize on."""
    return tuple(
        [
            _specialized(x) if isinstance(x, tuple) else (x % 16 == 0, x == 1, x >> 31) if isinstance(x, int) else None
            for x in scalars
        ]
    )
