"""Compile a Triton or Gluon kernel for an NVIDIA chip with no GPU. Needs only Triton's wheel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as triton_compile
from triton.runtime.jit import create_function_from_signature

BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"  # ptxas and cuobjdump
_BYTES = {"fp8e4nv": 1, "bf16": 2, "fp32": 4}  # of an element


def compiled_for(
    capability: int, kernel: Any, arguments: Sequence[Any] | Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """What Triton makes of a kernel; 90 for compute capability 9.0.

    arguments: numbers, constants, stand-ins for tensors; options: num_warps and the like.
    """
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    every = {"enable_fp_fusion": True, "debug": False, **options}
    by_place, by_name = ((), arguments) if isinstance(arguments, Mapping) else (arguments, {})
    bound, specialization, parsed = binder(*by_place, **by_name, **every)
    parsed, *described = kernel._pack_args(backend, dict(every), bound, specialization, parsed)
    return triton_compile(_source_of(kernel)(kernel, *described), target=target, options=parsed.__dict__)


def _source_of(kernel: Any) -> Any:
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource  # experimental: names that move

    return GluonASTSource


class Pointer:
    """Stands in for a tensor: an aligned address of some dtype, by Triton's short name."""

    def __init__(self, dtype: str) -> None:
        self.dtype = _Dtype(dtype)

    def data_ptr(self) -> int:
        """Aligned."""
        return 0


class _Dtype(str):
    """Stands in for a torch dtype."""

    is_floating_point = True

    @property
    def itemsize(self) -> int:
        return _BYTES[self]
