"""Compile the Hopper kernels with no GPU: `python -m kernels.attention.gluon_hopper.offline`.

Prints for each variant the shared memory of a block, what a thread spills, and ptxas's warnings that it serialised
the asynchronous products (C75xx), each of which would cost speed without being seen. Needs only Triton's wheel.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import compile as triton_compile
from triton.compiler import make_backend
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import create_function_from_signature

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.backward import backward_kernel
from kernels.attention.gluon_hopper.backward_queries import wide_queries_kernel
from kernels.attention.gluon_hopper.backward_wide import wide_keys_kernel
from kernels.attention.gluon_hopper.forward import forward_kernel

SHARED_MEMORY = 232448  # bytes of a block on compute capability 9.0, CUDA C++ Programming Guide, table of capabilities
FORWARDS = ("forward", "short", "long", "padded")
MASKS = {"full": (False, False), "causal": (True, False), "window": (True, True)}  # name -> CAUSAL, WINDOW
_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Variant:
    """One thing to compile."""

    kernel: str  # "forward", also of "short", "long" and "padded" ones; "backward", or apart "keys", "queries"
    head_dim: int
    mask: str


@dataclass(frozen=True)
class Report:
    """What a compiled variant needs."""

    variant: Variant
    shared_bytes: int
    spilled_bytes: int  # stored to a thread's stack
    warnings: tuple[str, ...]  # serialised products


def variants() -> Iterator[Variant]:
    """Every kernel, head_dim and mask of the tables."""
    for mask in MASKS:
        yield from (Variant("forward", head_dim, mask) for head_dim in tuning.HEAD_DIMS)
        yield Variant("padded", 64, mask)
        yield from (Variant("short", 128, mask) for _ in range(mask == "causal"))
        yield from (Variant("long", 64, mask) for _ in range(mask != "window"))
        yield from (Variant("backward", head_dim, mask) for head_dim in (64, 128))
        yield from (Variant(kernel, head_dim, mask) for kernel in ("keys", "queries") for head_dim in tuning.HEAD_DIMS)


def compile_variant(variant: Variant) -> Report:
    """Compile for sm_90a, and read ptxas's report."""
    kernel, arguments = _forward(variant) if variant.kernel in FORWARDS else _backward(variant)
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    options = {"num_warps": 4, "enable_fp_fusion": True, "debug": False}
    bound, specialization, parsed = binder(*arguments, **options)
    parsed, signature, constants, attributes = kernel._pack_args(backend, dict(options), bound, specialization, parsed)
    source = GluonASTSource(kernel, signature, constants, attributes)
    compiled = triton_compile(source, target=target, options=parsed.__dict__)
    log = _assemble(compiled.asm["ptx"])
    spilled = re.search(r"(\d+) bytes spill stores", log)
    return Report(variant, compiled.metadata.shared, int(spilled[1]), tuple(re.findall(r"\(C75\d\d\)[^\n]*", log)))


def compile_all(wanted: Iterable[Variant], processes: int = 2) -> Iterator[Report]:
    """Reports in the order of the variants."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(compile_variant, wanted)


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
        return 4 if self == "fp32" else 2


def _descriptor(dtype: str, block: list[int]) -> TensorDescriptor:
    if len(block) == 4:
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    else:
        layout = gl.NVMMASharedLayout(0, 32, len(block))
    shape = [4096] * len(block)
    return TensorDescriptor(_Pointer(dtype), shape, [4096] * (len(block) - 1) + [1], block, layout)


def _forward(variant: Variant) -> tuple[Any, list[Any]]:
    causal, window = MASKS[variant.mask]
    head_dim, seqlen = variant.head_dim, {"short": 512, "long": 8192}.get(variant.kernel, 1024)
    unpadded = head_dim - 8 * (variant.kernel == "padded")
    tiles = tuning.forward_tiles(head_dim, unpadded, seqlen, causal, window)
    q, kv = (_descriptor("bf16", [1, 1, rows, head_dim]) for rows in (tuning.ROWS, tiles.block_n))
    counts = [9, 9, 9, 9, 9, 9, 9, 9, 9]
    constants = [tuning.ROWS, tiles.block_n, head_dim, tiles.consumers, tiles.q_slots, tiles.kv_slots]
    constants += [causal, window, tiles.turns, causal or window, tiles.registers, tiles.direct]
    constants += [tiles.hold, tiles.by_lane]
    out = _Pointer("bf16") if tiles.direct else q
    return forward_kernel, [q, kv, kv, out, _Pointer("fp32"), *counts, 0.125, 9, 9, 9, *constants]


def _backward(variant: Variant) -> tuple[Any, list[Any]]:
    causal, window = MASKS[variant.mask]
    head_dim = variant.head_dim
    if variant.kernel == "backward":
        tiles = tuning.BACKWARD[head_dim]
    else:
        tiles = tuning.BACKWARD_APART[head_dim][variant.kernel == "queries"]
    q, kv = (_descriptor("bf16", [1, 1, rows, head_dim]) for rows in (tiles.block_m, tiles.block_n))
    fragments, rows = _descriptor("fp32", [16, 256]), _descriptor("fp32", [tiles.block_m])
    counts, scales = [9, 9, 9, 9, 9, 9, 9], [0.125, 0.125]
    constants = [tiles.block_m, tiles.block_n, head_dim, 2, causal, window, causal or window]
    if variant.kernel == "backward":
        return backward_kernel, [q, kv, kv, q, fragments, kv, kv, rows, rows, *counts, *scales, *constants]
    if variant.kernel == "keys":
        return wide_keys_kernel, [q, kv, kv, q, kv, kv, rows, rows, *counts, *scales, *constants]
    pointer = _Pointer("fp32")
    return wide_queries_kernel, [q, kv, kv, q, q, pointer, pointer, *counts[1:], *scales, *constants]


def main(arguments: list[str] | None = None) -> int:
    """Print a line a variant; 1 if anything does not fit or is serialised."""
    parser = argparse.ArgumentParser(prog="python -m kernels.attention.gluon_hopper.offline")
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=MASKS)
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    options = parser.parse_args(arguments)
    failed = False
    for report in compile_all(variant for variant in variants() if variant.mask in options.masks):
        print(json.dumps(asdict(report)) if options.json else _line(report), flush=True)
        failed |= report.shared_bytes > SHARED_MEMORY or bool(report.warnings)
    return int(failed)


def _line(report: Report) -> str:
    v = report.variant
    needs = f"shared {report.shared_bytes:6} of {SHARED_MEMORY}, spilled {report.spilled_bytes:4}"
    return f"{v.kernel:8} {v.head_dim:3} {v.mask:7} {needs}{''.join(f'  {warning}' for warning in report.warnings)}"


if __name__ == "__main__":
    sys.exit(main())
