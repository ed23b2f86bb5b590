"""Compile a kernel for Hopper with no GPU, and read what ptxas says of it. Needs only Triton's wheel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.compiler import BINARIES, Pointer, compiled_for

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
