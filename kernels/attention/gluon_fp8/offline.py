"""Compile the kernels with no GPU: `python -m kernels.attention.gluon_fp8.offline`.

Prints for each variant the shared memory of a block, what a thread spills, and ptxas's warnings that it serialised the
asynchronous products (C75xx). Needs only Triton's wheel.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as triton_compile
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import create_function_from_signature

from kernels.attention.gluon_fp8 import tuning
from kernels.attention.gluon_fp8.forward import forward_kernel
from kernels.attention.gluon_fp8.quantising import quantise_kernel

_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TYPES = {"fp8e4nv": gl.float8e4nv, "bf16": gl.bfloat16}
_BYTES = {"fp8e4nv": 1, "bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class Report:
    """What a compiled variant needs."""

    kernel: str  # "forward" or "quantise"
    head_dim: int
    shared_bytes: int
    spilled_bytes: int  # stored to a thread's stack
    warnings: tuple[str, ...]  # serialised products


def reports() -> Iterator[Report]:
    """Of every head_dim; the forward with a causal mask, whose form without one is a part of it."""
    for head_dim in tuning.HEAD_DIMS:
        yield _report("quantise", head_dim)
        yield _report("forward", head_dim)


def _report(name: str, head_dim: int) -> Report:
    kernel = forward_kernel if name == "forward" else quantise_kernel
    arguments = _forward(head_dim) if name == "forward" else _quantise(head_dim)
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    num_warps = 4 if name == "forward" else head_dim // 16
    options = {"num_warps": num_warps, "enable_fp_fusion": True, "debug": False}
    bound, specialization, parsed = binder(*arguments, **options)
    parsed, signature, constants, attributes = kernel._pack_args(backend, dict(options), bound, specialization, parsed)
    source_of = GluonASTSource if name == "forward" else ASTSource
    source = source_of(kernel, signature, constants, attributes)
    compiled = triton_compile(source, target=target, options=parsed.__dict__)
    log = _assemble(compiled.asm["ptx"])
    spilled = int(re.search(r"(\d+) bytes spill stores", log)[1])
    warnings = tuple(re.findall(r"\(C75\d\d\)[^\n]*", log))
    return Report(name, head_dim, compiled.metadata.shared, spilled, warnings)


def _assemble(ptx: str) -> str:
    """What ptxas says of it, run as Triton runs it."""
    recent = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [_BINARIES / ("ptxas-blackwell" if recent else "ptxas"), "-v", "--gpu-name=sm_90a", path]
        command += ["-o", f"{path}.cubin", *(["--regAllocOptLevel=2"] if recent else [])]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


class _Pointer:
    """Stands in for a tensor: an aligned address of some dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = _Dtype(dtype)

    def data_ptr(self) -> int:
        return 0


class _Dtype(str):
    """Stands in for a torch dtype, by Triton's short name."""

    is_floating_point = True

    @property
    def itemsize(self) -> int:
        return _BYTES[self]


def _descriptor(dtype: str, rows: int, columns: int) -> TensorDescriptor:
    block = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, _TYPES[dtype])
    return TensorDescriptor(_Pointer(dtype), [4096] * 4, [4096] * 3 + [1], block, layout)


def _forward(head_dim: int) -> list[Any]:
    tiles = tuning.TILES[head_dim]
    blocks = (tuning.ROWS, head_dim), (tiles.block_n, head_dim), (head_dim, tiles.block_n)
    tensors = [_descriptor("fp8e4nv", *block) for block in blocks]
    tensors += [_descriptor("bf16", tuning.ROWS, head_dim), *[_Pointer("fp32")] * 3]
    constants = [tuning.ROWS, tiles.block_n, head_dim, tiles.kv_slots, True, True]
    return [*tensors, *[9] * 8, 0.125, *constants]


def _quantise(head_dim: int) -> list[Any]:
    tensors = [_Pointer(dtype) for dtype in ("bf16", "fp8e4nv", "fp32") for _ in range(3)]
    return [*tensors, *[4096, 4096, 4096, 1] * 3, *[9] * 8, head_dim, head_dim]


def main() -> int:
    """A JSON object a variant; 1 if any product is serialised."""
    found = []
    for report in reports():
        found.append(report)
        print(json.dumps(asdict(report)), flush=True)
    return int(any(report.warnings for report in found))


if __name__ == "__main__":
    sys.exit(main())
