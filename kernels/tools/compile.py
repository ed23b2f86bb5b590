"""Compile a Triton or Gluon kernel for an NVIDIA chip without a GPU, and read its registers and shared memory.

Needs only Triton's wheel.
"""

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as triton_compile
from triton.runtime.jit import create_function_from_signature

from ..tables import shared_memory

_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"  # ptxas and cuobjdump


@dataclass(frozen=True)
class Resources:
    """The resources of one block of a compiled kernel."""

    shared_bytes: int
    registers: int  # per thread
    spilled_bytes: int  # per thread
    warnings: tuple[str, ...] = ()  # wgmma products that ptxas serialized (C75xx); Gluon kernels only


class RecordedLaunch(NamedTuple):
    """A kernel with its arguments, among them tensors without memory, and Triton's options such as num_warps."""

    kernel: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    options: dict[str, Any]

    def bound(self) -> dict[str, Any]:
        """Return the arguments by the names of the kernel's parameters."""
        return self.kernel.signature.bind(*self.arguments, **self.named).arguments

    def constants(self) -> dict[str, Any]:
        """Return the compile-time constants by lower-case name; the fields of a configuration count as constants."""
        found: dict[str, Any] = {}
        values = self.bound()
        for parameter in self.kernel.params:
            if parameter.is_constexpr and parameter.name in values:
                value = values[parameter.name]
                config = getattr(value, "config", None)
                found |= {parameter.name.lower(): value} if config is None else vars(config)
        return found

    def identity(self) -> tuple[Any, ...]:
        """Return what distinguishes it from other launches, without numbers and addresses."""
        arguments = tuple((name, _kind(value)) for name, value in self.bound().items())
        constants = tuple(sorted((name, repr(value)) for name, value in self.constants().items()))
        return self.kernel, arguments, constants, tuple(sorted(self.options.items()))


def _kind(argument: Any) -> Any:
    """Return an argument's type, dtype and TMA block, but not its value."""
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    tensor = getattr(argument, "base", argument)
    block = getattr(argument, "block_shape", None), getattr(argument, "layout", None)
    return type(argument).__name__, str(getattr(tensor, "dtype", None)), str(block)


def fits(capability: int, resources: Resources) -> bool:
    """Return whether the chip has that much shared memory for a block."""
    return resources.shared_bytes <= shared_memory()[capability]


def compile_offline(capability: int, launch: RecordedLaunch) -> Any:
    """Compile the kernel of a launch for a compute capability (90 for 9.0) and return Triton's CompiledKernel."""
    backend, source, parsed = _described(capability, launch)
    return triton_compile(source, target=backend.target, options=parsed)


def source_key(capability: int, launch: RecordedLaunch) -> str:
    """Return a hash of everything that determines the IR, using Triton's own key of a kernel and its callees.

    Takes a millisecond. Comments and line numbers change it, but not `fingerprint`.
    """
    _, source, _ = _described(capability, launch)
    parts = (triton.__version__, str(capability), repr(sorted(launch.options.items())), source.hash())
    return _hash_of(parts)


def fingerprint(capability: int, launch: RecordedLaunch) -> str:
    """Return a hash of everything that determines the machine code: chip, options, Triton's version and inlined IR.

    Takes about a tenth of a compilation. Names, comments and line numbers do not change it.
    """
    kernel = launch.kernel
    backend, source, parsed = _described(capability, launch)
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
    parts = (triton.__version__, str(capability), repr(sorted(launch.options.items())), text)
    return _hash_of(parts)


def resources_of(capability: int, launch: RecordedLaunch) -> Resources:
    """Compile the kernel of a launch and return the resources of a block.

    They are in the binary. For a Gluon kernel, ptxas runs a second time: only its log names the wgmma products that
    it serialized, and Triton does not keep the log.
    """
    compiled = compile_offline(capability, launch)
    shared_bytes = compiled.metadata.shared
    if launch.kernel.is_gluon():
        log = _ptxas_log(capability, compiled.asm["ptx"])
        registers, spilled = (int(re.search(p, log)[1]) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
        return Resources(shared_bytes, registers, spilled, tuple(re.findall(r"\(C75\d\d\)[^\n]*", log)))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command: list[str | Path] = [_BINARIES / "cuobjdump", "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return Resources(shared_bytes, registers, stack)


def _described(capability: int, launch: RecordedLaunch) -> tuple[Any, Any, dict[str, Any]]:
    """Return Triton's backend, the kernel as its source with these arguments, and all options."""
    kernel = launch.kernel
    backend = make_backend(GPUTarget("cuda", capability, 32))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    every = {"enable_fp_fusion": True, "debug": False, **launch.options}
    bound, specialization, parsed = binder(*launch.arguments, **launch.named, **every)
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
        command: list[str | Path] = [ptxas, "-v", f"--gpu-name=sm_{capability}{'a' if capability >= 90 else ''}", path]
        command += ["-o", f"{path}.cubin", *(["--regAllocOptLevel=2"] if recent else [])]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr
