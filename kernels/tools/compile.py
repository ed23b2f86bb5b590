"""Compile one Triton or Gluon kernel for an NVIDIA chip with no GPU, and read what it needs.

Needs only Triton's wheel.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as triton_compile
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import create_function_from_signature

from ..attention.triton_fa2.tuning import SHARED_MEMORY

_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"  # ptxas and cuobjdump
_ELEMENT_BYTES = {"fp8e4nv": 1, "bf16": 2, "fp32": 4}
_GLUON_TYPES = {"fp8e4nv": gl.float8e4nv, "bf16": gl.bfloat16, "fp32": gl.float32}

Arguments = Sequence[Any] | Mapping[str, Any]
Call = tuple[Any, Any, dict[str, Any]]  # a kernel, its arguments, its options


@dataclass(frozen=True)
class Resources:
    """What a block of a compiled kernel needs."""

    shared_bytes: int
    registers: int  # of a thread
    spilled_bytes: int  # of a thread
    warnings: tuple[str, ...] = ()  # wgmma products that ptxas serialised (C75xx); read for Gluon kernels only


class Compilable(ABC):
    """A kernel for a chip, as `chip` (90 for compute capability 9.0) and `call` tell."""

    chip: int

    @abstractmethod
    def call(self) -> Call:
        """Return the kernel with arguments and options that make Triton compile it."""

    def compile(self) -> Any:
        """Compile it and return Triton's CompiledKernel."""
        return compile_offline(self.chip, *self.call())

    def resources(self) -> Resources:
        """Compile it and return what a block of it needs."""
        kernel, arguments, options = self.call()
        return read_resources(self.chip, kernel, compile_offline(self.chip, kernel, arguments, options))

    def source_key(self) -> str:
        """Return a hash of the sources that it is compiled from."""
        return source_key(self.chip, *self.call())

    def fingerprint(self) -> str:
        """Return a hash that is the same as long as compiling it gives the same code."""
        return fingerprint(self.chip, *self.call())

    def fits(self, resources: Resources) -> bool:
        """Return whether the chip has that much shared memory for a block."""
        return resources.shared_bytes <= SHARED_MEMORY[self.chip]


def compile_offline(capability: int, kernel: Any, arguments: Arguments, options: Mapping[str, Any]) -> Any:
    """Compile a kernel for a compute capability (90 for 9.0) and return Triton's CompiledKernel.

    arguments: numbers, constants, Pointers and descriptors, by place or by name; options: num_warps and the like.
    """
    backend, source, parsed = _described(capability, kernel, arguments, options)
    return triton_compile(source, target=backend.target, options=parsed)


def source_key(capability: int, kernel: Any, arguments: Arguments, options: Mapping[str, Any]) -> str:
    """Return a hash of all that the IR is made from, by Triton's own key of a kernel and of what it calls.

    Takes a millisecond. Comments and line numbers change it, which do not change `fingerprint`.
    """
    _, source, _ = _described(capability, kernel, arguments, options)
    parts = (triton.__version__, str(capability), repr(sorted(options.items())), source.hash())
    return _hash_of(parts)


def fingerprint(capability: int, kernel: Any, arguments: Arguments, options: Mapping[str, Any]) -> str:
    """Return a hash of all that decides the compiled code: chip, options, Triton's version and the inlined first IR.

    Takes about a tenth of a compilation. Names, comments and line numbers do not change it.
    """
    backend, source, parsed = _described(capability, kernel, arguments, options)
    parsed = backend.parse_options({**parsed, **source.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators = backend.get_codegen_implementation(parsed), backend.get_module_map()
    module = source.make_ir(backend.target, parsed, *generators, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    inlined = "ttgir" if kernel.is_gluon() else "ttir"
    module = stages[inlined](module, {})
    text = module.str_nodebug().replace(f"@{kernel.__name__}", "@kernel")
    parts = (triton.__version__, str(capability), repr(sorted(options.items())), text)
    return _hash_of(parts)


def read_resources(capability: int, kernel: Any, compiled: Any) -> Resources:
    """Read what a block of a compiled kernel needs: from its binary, or for a Gluon kernel from ptxas's log.

    Only the log tells which wgmma products ptxas serialised, and Triton keeps none, so ptxas runs once more.
    """
    shared_bytes = compiled.metadata.shared
    if kernel.is_gluon():
        log = _ptxas_log(capability, compiled.asm["ptx"])
        registers, spilled = (int(re.search(p, log)[1]) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
        return Resources(shared_bytes, registers, spilled, tuple(re.findall(r"\(C75\d\d\)[^\n]*", log)))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [_BINARIES / "cuobjdump", "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return Resources(shared_bytes, registers, stack)


class Pointer:
    """Stands in for a tensor: an aligned address of a dtype, by Triton's short name ("bf16")."""

    def __init__(self, dtype: str) -> None:
        self.dtype = _Dtype(dtype)

    def data_ptr(self) -> int:
        """Return an address that is a multiple of 16 bytes."""
        return 0


def descriptor(dtype: str, block: list[int]) -> TensorDescriptor:
    """Return a TMA descriptor of tiles of a large tensor: those of four dimensions swizzled, those of fewer plain."""
    if len(block) == 4:
        layout = gl.NVMMASharedLayout.get_default_for(block, _GLUON_TYPES[dtype])
    else:
        layout = gl.NVMMASharedLayout(0, 32, len(block))
    shape = [4096] * len(block)
    return TensorDescriptor(Pointer(dtype), shape, [4096] * (len(block) - 1) + [1], block, layout)


class _Dtype(str):
    """Stands in for a torch dtype."""

    is_floating_point = True

    @property
    def itemsize(self) -> int:
        return _ELEMENT_BYTES[self]


def _described(
    capability: int, kernel: Any, arguments: Arguments, options: Mapping[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return Triton's backend, the kernel as its source with these arguments, and all options."""
    kernel = getattr(kernel, "jitted", kernel)
    backend = make_backend(GPUTarget("cuda", capability, 32))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    every = {"enable_fp_fusion": True, "debug": False, **options}
    by_place, by_name = ((), arguments) if isinstance(arguments, Mapping) else (arguments, {})
    bound, specialization, parsed = binder(*by_place, **by_name, **every)
    parsed, *described = kernel._pack_args(backend, dict(every), bound, specialization, parsed)
    return backend, _source_class(kernel)(kernel, *described), parsed.__dict__


def _hash_of(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _source_class(kernel: Any) -> Any:
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource  # experimental: names that move

    return GluonASTSource


def _ptxas_log(capability: int, ptx: str) -> str:
    """Run ptxas as Triton runs it and return what it prints."""
    recent = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        ptxas = _BINARIES / ("ptxas-blackwell" if recent else "ptxas")
        command = [ptxas, "-v", f"--gpu-name=sm_{capability}{'a' if capability >= 90 else ''}", path]
        command += ["-o", f"{path}.cubin", *(["--regAllocOptLevel=2"] if recent else [])]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr
