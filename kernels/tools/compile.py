"""Compile a Triton or Gluon kernel for an NVIDIA chip with no GPU. Needs only Triton's wheel.

Compile a kernel for Hopper with no GPU, and read what ptxas says of it. Needs only Triton's wheel.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as triton_compile
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
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


_TYPES = {"fp8e4nv": gl.float8e4nv, "bf16": gl.bfloat16}


@dataclass(frozen=True)
class Needs:
    """What a block of a compiled kernel needs."""

    shared_bytes: int
    spilled_bytes: int  # stored to a thread's stack
    warnings: tuple[str, ...]  # asynchronous products that ptxas serialised (C75xx)


def compiled_needs(kernel: Any, arguments: list[Any], num_warps: int = 4) -> Needs:
    """Of a Gluon or Triton kernel for sm_90a; `arguments` are numbers, constants, pointers and descriptors."""
    compiled = compiled_for(90, kernel, arguments, {"num_warps": num_warps})
    log = _assemble(compiled.asm["ptx"])
    spilled = int(re.search(r"(\d+) bytes spill stores", log)[1])
    return Needs(compiled.metadata.shared, spilled, tuple(re.findall(r"\(C75\d\d\)[^\n]*", log)))


def _assemble(ptx: str) -> str:
    """What ptxas says of it, run as Triton runs it."""
    recent = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [BINARIES / ("ptxas-blackwell" if recent else "ptxas"), "-v", "--gpu-name=sm_90a", path]
        command += ["-o", f"{path}.cubin", *(["--regAllocOptLevel=2"] if recent else [])]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def descriptor(dtype: str, block: list[int]) -> TensorDescriptor:
    """Of tiles of a large tensor: those of four dimensions swizzled, those of fewer plain."""
    if len(block) == 4:
        layout = gl.NVMMASharedLayout.get_default_for(block, _TYPES[dtype])
    else:
        layout = gl.NVMMASharedLayout(0, 32, len(block))
    shape = [4096] * len(block)
    return TensorDescriptor(Pointer(dtype), shape, [4096] * (len(block) - 1) + [1], block, layout)
